"""Data on its way between nodes: metrics, batches as arrays, redistribution plans."""
