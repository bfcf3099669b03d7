"""The typed configuration of a run: what all runs share in ``run.py``, and a file for each kind of job."""

from embodyflow.config.run import RunConfig

__all__ = ["RunConfig"]
