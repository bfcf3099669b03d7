"""What the training flows share: their parameters, and that they train as their name's configuration says."""

from collections.abc import Coroutine
from typing import Any

from prefect import Flow, flow

from embodyflow.orchestration.request.request import (
    Experiment,
    Iterations,
    Overrides,
    Resume,
    RunId,
    RunRequest,
    Seed,
    flow_run_name,
)
from embodyflow.orchestration.server.resumption import resume_after_crash


def training_flow(name: str, description: str) -> Flow[..., Coroutine[Any, Any, dict[str, Any]]]:
    """Return the training flow of that name, whose pipeline and algorithm ``configs/flow/<name>.yaml`` chooses.

    Args:
        name: of the flow, and of its file in ``flows/`` and in ``configs/flow/``.
        description: shown in the UI.
    """

    @flow(
        name=name,
        description=description,
        flow_run_name=flow_run_name,
        persist_result=False,
        on_crashed=[resume_after_crash],
    )
    async def training(
        experiment: Experiment = "embodied",
        iterations: Iterations = None,
        seed: Seed = None,
        run_id: RunId = None,
        resume: Resume = None,
        overrides: Overrides = (),
    ) -> dict[str, Any]:
        """Train a policy; returns the run's summary."""
        from embodyflow.orchestration.run.training import (
            train,  # torch and Ray take seconds to import, and a mistake is to be told in one
        )

        return await train(RunRequest(experiment, iterations, seed, run_id, resume, overrides, flow=name))

    return training
