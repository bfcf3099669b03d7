"""Episodes and rows in a run's folder."""
