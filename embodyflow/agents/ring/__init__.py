"""Agents in a ring: each reads what the one before it left, and an environment steps after the last one."""
