"""``embodyflow episodes`` and ``embodyflow replay``."""
