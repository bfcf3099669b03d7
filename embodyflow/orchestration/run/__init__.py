"""The life of a training run: start, iterations, recovery, commit, export."""
