"""A sweep over configuration keys as a Prefect flow: a run for each combination, and a leaderboard.

With a server: ``prefect deployment run sweep/reacher -p 'overrides=["seed=range(0,3)"]'``. Without one::

    python -m flows.sweep experiment=reacher trainer.learning_rate=1e-3,3e-4 'seed=range(0,3)' sweep_id=lr
"""

from typing import Annotated, Any

from prefect import flow
from prefect.client.schemas.objects import State
from pydantic import Field

from embodyflow.config.base import RUN_NAME_PATTERN
from embodyflow.orchestration.request.form_fields import FormField, with_form
from embodyflow.orchestration.request.request import IfExists
from embodyflow.orchestration.request.run_name import as_run_name, flow_run_name
from embodyflow.orchestration.server.attempts import only_attempt
from embodyflow.orchestration.server.events import log_outages_briefly
from embodyflow.orchestration.server.resumption import resume_after_crash
from embodyflow.orchestration.sweep.sweep_request import MAX_RUNS, Direction
from embodyflow.orchestration.watchers.flow_run_watch import watch_flow_run
from embodyflow.orchestration.watchers.orphans import has_flow_watcher, start_flow_watcher

SweepId = Annotated[
    str | None,
    Field(pattern=RUN_NAME_PATTERN),
    FormField("Name of the sweep: its runs are `<sweep_id>-<number>`. Empty means the name of the flow run"),
]
Experiments = Annotated[str, FormField("Experiment of the runs, a file in `configs/experiment`, or several: `a,b`")]
Swept = Annotated[
    tuple[str, ...],
    FormField(
        "Configuration keys, one `key=value` per entry. Several values in Hydra's multirun grammar are swept: "
        "`trainer.learning_rate=1e-3,3e-4`, `seed=range(0,3)`, `algorithm=glob(*po)`"
    ),
]
Concurrency = Annotated[int, Field(ge=1), FormField("Most runs at a time")]
Metric = Annotated[
    str | None,
    FormField("Metric to rank by, such as `eval/return`. Empty means the one that `embodyflow compare` would take"),
]
Best = Annotated[Direction, FormField("Whether a large or a small value of the metric is good: `maximize`, `minimize`")]
MaxRuns = Annotated[int, Field(ge=1), FormField("Most combinations; a larger grid is refused")]
StopAtFailure = Annotated[bool, FormField("Start no further run after one has failed: `true` or `false`")]
Existing = Annotated[
    IfExists, FormField("What to do if the sweep exists: `refuse` it, or `resume` what has not finished")
]


@with_form
@flow(
    name="sweep",
    description="Train a policy for each combination of values, and rank the runs.",
    flow_run_name=flow_run_name,
    persist_result=False,
    on_crashed=[resume_after_crash],
)
async def sweep(
    sweep_id: SweepId = None,
    experiment: Experiments = "embodied",
    concurrency: Concurrency = 1,
    metric: Metric = None,
    direction: Best = "maximize",
    max_runs: MaxRuns = MAX_RUNS,
    stop_at_failure: StopAtFailure = False,
    if_exists: Existing = "refuse",
    overrides: Swept = (),
) -> dict[str, Any] | State[Any]:
    """Run a sweep and return its name, the number of its runs and its folder.

    The result is a state if another process has ended the flow run.
    """
    from prefect.runtime import flow_run

    from embodyflow.orchestration.sweep.sweep_request import SweepRequest, planned

    name = sweep_id or as_run_name(str(flow_run.name))
    request = SweepRequest(
        name, experiment, tuple(overrides), concurrency, metric, direction, max_runs, stop_at_failure, if_exists
    )
    if (ended := await only_attempt(lambda: planned(request).run_root)) is not None:
        return ended
    if not has_flow_watcher():
        start_flow_watcher()  # ends the processes of the runs if this one is killed
    watch_flow_run()
    log_outages_briefly()
    from embodyflow.orchestration.sweep.sweep_run import run_sweep  # importing torch and Ray takes seconds

    return await run_sweep(request)


if __name__ == "__main__":
    from embodyflow.orchestration.sweep.command_line import main

    main(sweep)
