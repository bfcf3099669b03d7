"""Configurations, checkpoints and tokenizers of policies that begin with published weights."""
