"""The configuration of agent jobs, of the environments that agents play and of how several agents take turns."""
