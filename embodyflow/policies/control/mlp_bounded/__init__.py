"""A Gaussian policy with bounded means for offline learning, and its critics of actions and of states."""
