"""Statistics of the rows that a policy has trained on."""
