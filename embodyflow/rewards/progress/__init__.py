"""The progress reward of SRPO, which compares failed episodes with successful ones."""
