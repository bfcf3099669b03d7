"""What the findings about a run's health do: report, ask, roll back, end the run."""
