"""The kinds of jobs."""

from embodyflow.config.agents.agent import AgentJobConfig
from embodyflow.config.language import LanguageConfig
from embodyflow.config.robots.control import ControlConfig
from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.config.run import RunConfig

KINDS = (EmbodiedConfig, ControlConfig, LanguageConfig, AgentJobConfig)

JOBS: dict[str, type[RunConfig]] = {kind.kind: kind for kind in KINDS}
"""Configuration class of each kind of job, by the value of ``job``."""
