"""A squashed Gaussian over chunks of actions that reads images, for off-policy training, and its critics."""
