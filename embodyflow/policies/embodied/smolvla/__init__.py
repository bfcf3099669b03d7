"""SmolVLA, with weights of LeRobot's checkpoints or random ones."""
