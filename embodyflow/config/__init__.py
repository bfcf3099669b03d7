"""The typed configuration of a run: ``run.py`` holds what all runs share, and each kind of job has its own file."""

from embodyflow.config.run import RunConfig

__all__ = ["RunConfig"]
