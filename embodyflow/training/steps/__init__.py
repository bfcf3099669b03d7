"""The optimizer steps of a pass over the rows, eager or as a traced graph."""
