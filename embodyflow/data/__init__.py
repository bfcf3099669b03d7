"""Data on its way between nodes: tables of rows, redistribution plans and metrics."""
