"""Tools: functions that the model may call, and how its calls are found and run."""
