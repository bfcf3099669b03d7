"""Trainer engines: they update the weights of policy and critic from batches of rows."""
