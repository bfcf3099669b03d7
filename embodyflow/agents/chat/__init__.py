"""The tokens of an episode and of its chats, and the calls that were sampled."""
