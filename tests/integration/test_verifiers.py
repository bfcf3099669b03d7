"""Tasksets of the package verifiers, unchanged, in a process of their own."""

from __future__ import annotations

import asyncio
import importlib.util
from typing import Any

import pytest
from episode_clients import KnownModel, context_of, engine_of

from embodyflow.agents.episode import Episode
from embodyflow.agents.verifiers.verifiers_workflow import VerifiersWorkflow
from embodyflow.prompts.prompt_config import VerifiersTasksConfig
from embodyflow.prompts.verifiers.verifiers_prompts import VerifiersPrompts

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(importlib.util.find_spec("verifiers") is None, reason="needs the extra verifiers"),
]


def prompts(taskset: str, **settings: Any) -> VerifiersPrompts:
    environment = {"taskset": taskset, "settings": settings}
    return VerifiersPrompts(VerifiersTasksConfig(environment=environment, num_validation=1, num_train=1))


def play(taskset: str, *turns: str, max_turns: int = 3, **settings: Any) -> tuple[Episode, KnownModel, dict[str, float]]:
    """Play the first task with a model whose turns are known."""
    row = VerifiersPrompts(
        VerifiersTasksConfig(environment={"taskset": taskset, "settings": settings}, num_validation=1, num_train=None)
    ).prompt("validation", 0)
    context = context_of(verifiers={"taskset": taskset, "settings": settings}, max_turns=max_turns)
    workflow, model = VerifiersWorkflow(context.config), KnownModel(*turns)

    async def run() -> Episode:
        return await workflow.run(engine_of(model, 200), row, context)

    try:
        episode = asyncio.run(run())
    finally:
        workflow.close()
    return episode, model, {name: metric.value for name, metric in workflow.metrics().items()}
