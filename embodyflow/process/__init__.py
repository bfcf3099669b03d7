"""Operating-system helpers: child processes, locks, durable files, repeatable arithmetic."""
