"""A Gaussian policy for continuous control, and its critic: two small networks over the state."""
