"""Small projects of your own, run as they stand from the root of the repository."""
