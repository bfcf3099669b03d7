"""How long an iteration would take elsewhere: a simulation of its events, with costs from the record of a run."""
