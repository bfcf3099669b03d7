"""The flows of this project, one per file; ``python -m flows.<name>`` runs one without a server."""
