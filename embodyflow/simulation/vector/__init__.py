"""Many copies of an environment that step together, in threads or processes."""
