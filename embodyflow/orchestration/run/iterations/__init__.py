"""The iterations of a run: passes over the graph, and the order in which those in flight proceed."""
