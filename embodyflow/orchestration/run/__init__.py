"""The lifecycle of a training run: start, iterations, recovery, commit, export."""
