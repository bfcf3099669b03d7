"""``embodyflow check-env``."""
