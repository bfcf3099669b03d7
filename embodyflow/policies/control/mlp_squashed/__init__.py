"""A squashed Gaussian policy for off-policy control, and its critics of states and actions."""
