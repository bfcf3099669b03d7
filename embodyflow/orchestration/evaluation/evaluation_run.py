"""The lifecycle of an evaluation: a policy plays what its kind of job evaluates it on."""

from collections.abc import Mapping
from typing import Any

from prefect.logging import get_run_logger

from embodyflow.config import RunConfig
from embodyflow.errors import ConfigError
from embodyflow.graph import load_pipeline
from embodyflow.orchestration.display.reporting import report_folder, report_unrestorable, warn_of_unrestorable
from embodyflow.orchestration.evaluation.evaluation_request import (
    EvaluatedPolicy,
    EvaluationRequest,
    bind_to_flow_run,
    check_evaluation,
    open_evaluation,
)
from embodyflow.orchestration.evaluation.pinned_checkpoint import pinned_run, unpin_checkpoint
from embodyflow.orchestration.evaluation.returns import return_lines
from embodyflow.orchestration.evaluation.success_by_task import success_lines
from embodyflow.orchestration.request.run_name import show_run_name
from embodyflow.orchestration.run.iterations.nodes import Run
from embodyflow.orchestration.run.open_run import open_run
from embodyflow.orchestration.run.run_log import logged_to
from embodyflow.orchestration.run.storage_faults import storage_faults_explained
from embodyflow.process.files.durable_files import write_durably
from embodyflow.record.run_folder import unrestorable_lines
from embodyflow.references import resolve


async def run_evaluation(request: EvaluationRequest) -> dict[str, Any]:
    """Evaluate as requested; return the content of ``evaluation.json``.

    An evaluation that was stopped continues: episodes that it has played are read from its folder.

    Raises:
        ConfigError: The request is wrong, or the cluster lacks resources for it.
        StorageError: The disk is full or read-only, or the evaluation's folder is gone.
    """
    config, policy = check_evaluation(bind_to_flow_run(request))
    await show_run_name(str(config.run_id))
    folder = open_evaluation(config, policy)
    with folder.locked(), storage_faults_explained(folder), logged_to(folder):
        get_run_logger().info("evaluation %s in %s", config.run_id, folder.path)
        warn_of_unrestorable(folder)
        async with open_run(folder, config, load_pipeline(**config.pipeline.source())) as run:
            return await _evaluate(run, config, policy)


async def _evaluate(run: Run, config: RunConfig, policy: EvaluatedPolicy) -> dict[str, Any]:
    digest = await _load(run, policy)
    report_folder(run)
    report_unrestorable(run)
    run.folder.write_status("evaluate", 0, config.iterations)
    assert config.policy_evaluator is not None
    result = {
        "policy": str(policy.path),
        "iteration": policy.iteration,
        "weights_digest": digest,
        "unrestorable": unrestorable_lines(run.folder.unrestorable()),
        **await resolve(config.policy_evaluator)(run, policy),
    }
    run.folder.write_evaluation(result)
    unpin_checkpoint(run.folder)
    run.folder.write_status("done", config.iterations, config.iterations)
    return result


async def _load(run: Run, policy: EvaluatedPolicy) -> str:
    """Load the policy's weights into the workers; return their digest.

    Raises:
        DamageError: The checkpoint is damaged.
        ConfigError: An earlier attempt used other weights.
    """
    if policy.iteration is None:
        await run.session.load_weights(policy.path / "model.safetensors")
    else:
        trained = pinned_run(run.folder)
        for iteration in (0, policy.iteration):
            trained.checkpoints.verify(iteration)
        await run.session.load_reference(trained.checkpoints.folder(0))
        await run.session.restore(trained.checkpoints.folder(policy.iteration))
    digest = await run.session.publish_weights(policy.iteration or 0)
    note = run.folder.path / "weights"
    if not note.exists():
        write_durably(note, digest)
    if note.read_text() != digest:
        raise ConfigError(
            f"run_id={run.config.run_id}: was started with other weights than {policy.path} has; choose another"
        )
    return digest


def evaluation_lines(result: Mapping[str, Any]) -> str:
    """Format an evaluation's result for a terminal."""
    lines = success_lines(result) if "tasks" in result else return_lines(result)
    return "\n".join([*lines, *result["unrestorable"]])
