"""The training flows: one Prefect flow per name, all with the same parameters."""

from collections.abc import Coroutine
from typing import Annotated, Any

from prefect import Flow, flow
from prefect.client.schemas.objects import State

from embodyflow.config.composition.compose import algorithms
from embodyflow.orchestration.request.form_fields import FormField, with_form
from embodyflow.orchestration.request.request import (
    Experiment,
    Iterations,
    Overrides,
    Resume,
    RunId,
    RunRequest,
    Seed,
)
from embodyflow.orchestration.request.run_name import flow_run_name
from embodyflow.orchestration.server.attempts import only_attempt
from embodyflow.orchestration.server.events import log_outages_briefly
from embodyflow.orchestration.server.resumption import resume_after_crash
from embodyflow.orchestration.watchers.flow_run_watch import watch_flow_run


def training_flow(name: str, description: str) -> Flow[..., Coroutine[Any, Any, dict[str, Any] | State[Any]]]:
    """Return the training flow of a name, which runs the algorithms of ``configs/algorithm`` that select it.

    Args:
        name: Name of the flow, of its file in ``flows/`` and of its default algorithm.
        description: Text that the UI shows.
    """
    algorithm_of_flow = Annotated[
        str | None,
        FormField(
            "Algorithm, a file in `configs/algorithm`. Empty means the experiment's default",
            choices=algorithms(name),
        ),
    ]

    @flow(
        name=name,
        description=description,
        flow_run_name=flow_run_name,
        persist_result=False,
        on_crashed=[resume_after_crash],
    )
    async def training(
        experiment: Experiment = "embodied",
        algorithm: algorithm_of_flow = None,
        iterations: Iterations = None,
        seed: Seed = None,
        run_id: RunId = None,
        resume: Resume = None,
        overrides: Overrides = (),
    ) -> dict[str, Any] | State[Any]:
        """Train a policy and return the run's summary, or the state of a flow run that another process has ended."""
        request = RunRequest(experiment, algorithm, iterations, seed, run_id, resume, overrides, flow=name)
        if (ended := await only_attempt(request.run_root)) is not None:
            return ended
        watch_flow_run()
        log_outages_briefly()
        from embodyflow.orchestration.run.training import (
            train,  # importing torch and Ray takes seconds
        )

        return await train(request)

    return with_form(training)
