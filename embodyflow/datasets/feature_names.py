"""Names of features: LeRobot's, by which other formats name theirs too."""

STATE, ACTION, IMAGES = "observation.state", "action", "observation.images."
SUCCESS = "next.success"
"""Whether a step succeeded, as LeRobot's data sets of simulators have it."""
