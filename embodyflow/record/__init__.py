"""What a run leaves on disk: folder, checkpoints, ledger, episodes, trackers."""
