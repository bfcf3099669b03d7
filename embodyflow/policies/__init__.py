"""Policies: one folder each, with its configuration, its model and its processing."""
