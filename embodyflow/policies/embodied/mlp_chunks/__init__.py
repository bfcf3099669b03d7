"""A squashed Gaussian over chunks of actions, for off-policy training from demonstrations, and its critics."""
