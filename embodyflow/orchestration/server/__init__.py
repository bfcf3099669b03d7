"""Communication with the Prefect server. A run continues while the server is unavailable."""
