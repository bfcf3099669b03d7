"""The kinds of jobs."""

from embodyflow.config.agent import AgentJobConfig
from embodyflow.config.control import ControlConfig
from embodyflow.config.embodied import EmbodiedConfig
from embodyflow.config.language import LanguageConfig
from embodyflow.config.run import RunConfig

KINDS = (EmbodiedConfig, ControlConfig, LanguageConfig, AgentJobConfig)

JOBS: dict[str, type[RunConfig]] = {kind.kind: kind for kind in KINDS}
"""Configuration class of each kind of job, by the value of ``job``."""
