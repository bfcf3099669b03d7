"""``embodyflow reproduce``: training again from the record of a run."""
