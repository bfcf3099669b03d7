"""The replay buffer: transitions of a run on disk, and batches drawn from them."""
