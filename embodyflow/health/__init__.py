"""Signs that a run is about to be lost: pure functions of the metrics that it has written so far."""
