"""Ray: worker groups, the buffer of each node, and what they say to each other."""
