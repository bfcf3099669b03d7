"""What a person sees of a run: artifacts of the Prefect UI, and the progress in a terminal."""
