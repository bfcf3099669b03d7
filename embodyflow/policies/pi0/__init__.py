"""π0, of LeRobot's checkpoints or of random weights."""
