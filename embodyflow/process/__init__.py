"""Processes and files of the operating system: child processes, locks, durable files, heap and determinism settings."""
