"""``embodyflow compare``: runs beside each other."""
