"""What a run is asked for: parsed, checked and refused before anything starts."""
