"""The kinds of jobs."""

from embodyflow.config.control import ControlConfig
from embodyflow.config.embodied import EmbodiedConfig
from embodyflow.config.language import LanguageConfig
from embodyflow.config.run import RunConfig

JOBS: dict[str, type[RunConfig]] = {kind.kind: kind for kind in (EmbodiedConfig, ControlConfig, LanguageConfig)}
"""Configuration class of each kind of job, by the value of ``job``."""
