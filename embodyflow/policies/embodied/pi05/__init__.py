"""π0.5, with weights of LeRobot's checkpoints or random ones."""
