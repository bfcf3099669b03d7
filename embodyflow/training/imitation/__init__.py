"""Imitation of demonstrations: before reinforcement learning, and beside it by DAgger."""
