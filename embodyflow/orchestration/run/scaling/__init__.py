"""The number of rollout workers, which may follow the times that trainer and rollout workers wait."""
