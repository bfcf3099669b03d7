"""A categorical policy for control with discrete actions, and its critic: two small networks over the state."""
