"""A deterministic policy with exploration noise for off-policy control, and its critics of states and actions."""
