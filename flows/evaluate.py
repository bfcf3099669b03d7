"""The evaluation of a policy as a Prefect flow: success by task or, for control jobs, returns, with 95% intervals.

With a server: ``prefect deployment run evaluate/embodied -p policy=runs/mine``. Without one::

    python -m flows.evaluate policy=runs/mine evaluation.num_goals=100
"""

import sys
from typing import Annotated, Any

from prefect import flow
from prefect.client.schemas.objects import State
from pydantic import Field

from embodyflow.config.base import RUN_NAME_PATTERN
from embodyflow.config.composition.compose import experiments
from embodyflow.orchestration.request.form_fields import FormField, with_form
from embodyflow.orchestration.request.request import Overrides
from embodyflow.orchestration.request.run_name import flow_run_name
from embodyflow.orchestration.server.attempts import only_attempt
from embodyflow.orchestration.server.events import log_outages_briefly
from embodyflow.orchestration.server.resumption import resume_after_crash
from embodyflow.orchestration.watchers.flow_run_watch import watch_flow_run

Policy = Annotated[
    str,
    Field(min_length=1),
    FormField("Folder of a run, such as `runs/mine`, or of an exported policy, such as `runs/mine/policy`"),
]
EvaluatedIn = Annotated[
    str | None,
    FormField(
        "Experiment to evaluate an exported policy in, a file in `configs/experiment`. A run has its own",
        choices=experiments(),
    ),
]
EvaluationId = Annotated[
    str | None,
    Field(pattern=RUN_NAME_PATTERN),
    FormField("Name of the evaluation's folder. Empty means the name of the flow run"),
]


@with_form
@flow(
    name="evaluate",
    description="Evaluate a policy by task, or by its returns.",
    flow_run_name=flow_run_name,
    persist_result=False,
    on_crashed=[resume_after_crash],
)
async def evaluate(
    policy: Policy, experiment: EvaluatedIn = None, run_id: EvaluationId = None, overrides: Overrides = ()
) -> dict[str, Any] | State[Any]:
    """Evaluate a policy and return the contents of ``evaluation.json``.

    The result is a state if another process has ended the flow run.
    """
    from embodyflow.orchestration.evaluation.evaluation_request import EvaluationRequest

    request = EvaluationRequest(policy, experiment, run_id, overrides)
    if (ended := await only_attempt(request.run_root)) is not None:
        return ended
    watch_flow_run()
    log_outages_briefly()
    from embodyflow.orchestration.evaluation.evaluation_run import (
        run_evaluation,  # importing torch and Ray takes seconds
    )

    return await run_evaluation(request)


def main() -> None:
    """Check the command line, run the flow, print its result and exit."""
    from embodyflow.errors import ConfigError, InfrastructureError, StorageError
    from embodyflow.orchestration.evaluation.evaluation_request import (
        check_evaluation,
        open_evaluation,
        parse_evaluation,
    )
    from embodyflow.orchestration.request.command_line import run_flow
    from embodyflow.orchestration.request.usage import answer_help
    from embodyflow.record.run_folder import RunFolder

    answer_help(
        evaluate,
        sys.argv[1:],
        "Every other key=value overrides the configuration in Hydra's grammar, such as evaluation.num_goals=100. A run "
        "has its own configuration (config.yaml in its folder); an exported policy has the experiment's.",
    )
    try:
        request = parse_evaluation(sys.argv[1:])
        config, policy = check_evaluation(request)
        open_evaluation(config, policy)  # pins the policy, so that the flow finds it even if the run commits meanwhile
    except ConfigError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    parameters = request.parameters() | {"run_id": config.run_id}
    # Without a run_id the same command would evaluate a newer commit.
    hint = f"stopped; continue with the same command and run_id={config.run_id}"
    try:
        result = run_flow(evaluate, parameters, config, lambda: hint, finished=RunFolder(config.run_dir).evaluation)
    except ConfigError as error:  # only workers can detect some mistakes, such as other observations
        print(error, file=sys.stderr)
        sys.exit(2)
    except (StorageError, InfrastructureError) as error:
        print(error, file=sys.stderr)
        sys.exit(1)

    from embodyflow.orchestration.evaluation.evaluation_run import evaluation_lines

    print(evaluation_lines(result))
    print(f"run_dir={config.run_dir}")


if __name__ == "__main__":
    main()
