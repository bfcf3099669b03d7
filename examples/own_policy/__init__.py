"""A policy of your own, trained without a change to embodyflow."""
