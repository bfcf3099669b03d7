"""Policies of language and agent jobs, and the layers that they and the generation engines share."""
