"""The spans of a run's trace for OpenTelemetry: read while processes append them, with parents and ids, and sent."""
