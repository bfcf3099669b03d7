"""The workflow that a configuration names."""

import inspect

from embodyflow.agents.workflow import RolloutWorkflow, WorkflowBuilder
from embodyflow.config.agents.agent import AgentConfig
from embodyflow.errors import ConfigError
from embodyflow.references import resolve


def build_workflow(config: AgentConfig) -> RolloutWorkflow:
    """Build the workflow of an agent.

    Args:
        config: Section ``rollout.agent``.

    Raises:
        ConfigError: The class cannot be imported, or is no workflow.
    """
    key = f"rollout.agent.workflow={config.workflow}"
    try:
        build: WorkflowBuilder = resolve(config.workflow)
    except ImportError as error:
        raise ConfigError(f"{key}: {error}") from error
    if isinstance(build, type) and inspect.iscoroutinefunction(getattr(build, "arun_episode", None)):
        from embodyflow.agents.areal.areal_workflow import ArealWorkflow  # imports torch, which takes seconds

        return ArealWorkflow(build, config)
    if config.workflow_kwargs:
        raise ConfigError(f"rollout.agent.workflow_kwargs: {key} takes no such arguments; allowed is {{}}")
    if not (isinstance(build, type) and inspect.iscoroutinefunction(getattr(build, "run", None))):
        raise ConfigError(
            f"{key}: must be a class with async def run(self, engine, row, context), or AReaL's arun_episode(engine, "
            "data)"
        )
    return build(config)
