"""Episodes that run side by side on one generation engine."""
