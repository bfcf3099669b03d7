"""π0, with weights of LeRobot's checkpoints or random ones."""
