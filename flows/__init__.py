"""The lifecycle of a run as Prefect flows: validate, start workers, iterate, commit, stop."""
