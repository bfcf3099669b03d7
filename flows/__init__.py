"""The training flows of this project, one algorithm per file; ``python -m flows.<name>`` runs one without a server."""
