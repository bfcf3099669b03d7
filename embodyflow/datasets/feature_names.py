"""Names of features: LeRobot's, by which other formats name theirs too."""

STATE, ACTION, IMAGES = "observation.state", "action", "observation.images."
