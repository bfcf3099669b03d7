"""SmolVLA, of LeRobot's checkpoints or of random weights."""
