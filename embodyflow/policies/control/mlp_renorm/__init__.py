"""A squashed Gaussian policy with batch renormalisation for off-policy control, and its wider critics."""
