"""Vector environments: stepping, supervision, rendering."""
