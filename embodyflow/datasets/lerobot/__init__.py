"""LeRobot's data sets: versions v2.1 and v3.0 are read, v3.0 is written."""
