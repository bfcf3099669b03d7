"""Policies, a folder each: configuration, model, processing, critic and check."""
