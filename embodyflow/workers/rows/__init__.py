"""The rows that pass between workers: the buffer of each Ray node, and who reads which rows from it."""
