"""Environments of the package verifiers, which play episodes in a process of their own."""
