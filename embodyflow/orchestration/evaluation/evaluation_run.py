"""The lifecycle of an evaluation: a policy plays the goals of every task, greedily and sampled."""

import json
from typing import Any

from prefect.logging import get_run_logger

from embodyflow.config.embodied import EmbodiedConfig
from embodyflow.data.confidence_intervals import wilson_interval
from embodyflow.errors import ConfigError
from embodyflow.graph import load_pipeline
from embodyflow.orchestration.evaluation.contact_sheets import draw_evaluation
from embodyflow.orchestration.evaluation.evaluation import MODES, solved_goals
from embodyflow.orchestration.evaluation.evaluation_request import (
    EvaluatedPolicy,
    EvaluationRequest,
    bind_to_flow_run,
    check_evaluation,
    open_evaluation,
)
from embodyflow.orchestration.evaluation.pinned_checkpoint import pinned_run, unpin_checkpoint
from embodyflow.orchestration.run.nodes import Run, submit_node
from embodyflow.orchestration.run.open_run import open_run
from embodyflow.orchestration.run.parity import check_parity, observe
from embodyflow.orchestration.run.storage_faults import storage_faults_explained
from embodyflow.orchestration.server.reporting import report_unrestorable, warn_of_unrestorable
from embodyflow.process.durable_files import write_durably
from embodyflow.record.run_folder import RunFolder, unrestorable_lines
from embodyflow.workers.calls import NodeReport, NodeWork


async def run_evaluation(request: EvaluationRequest) -> dict[str, Any]:
    """Evaluate as requested; return the content of ``evaluation.json``.

    An evaluation that was stopped continues: episodes that it has played are read from its folder.

    Raises:
        ConfigError: The request is wrong, or the cluster lacks resources for it.
        StorageError: The disk is full or read-only, or the evaluation's folder is gone.
    """
    config, policy = check_evaluation(bind_to_flow_run(request))
    folder = open_evaluation(config, policy)
    get_run_logger().info("evaluation %s in %s", config.run_id, folder.path)
    warn_of_unrestorable(folder)
    with folder.locked(), storage_faults_explained(folder):
        async with open_run(folder, config, load_pipeline(**config.pipeline.source())) as run:
            return await _evaluate(run, config, policy)


async def _evaluate(run: Run, config: EmbodiedConfig, policy: EvaluatedPolicy) -> dict[str, Any]:
    digest = await _load(run, policy)
    seen = await observe(run)
    if policy.iteration is not None:
        check_parity(RunFolder(policy.path), seen, run.folder.unrestorable().keys())
    report_unrestorable(run)
    run.folder.write_status("evaluate", 0, config.iterations)
    played: dict[str, dict[str, NodeReport]] = {}
    for number, task in enumerate(config.env.tasks):
        played[task] = {mode: await _play(run, number, mode) for mode in MODES}
        await draw_evaluation(run, task, played[task]["greedy"])
        run.artifacts.put_table(
            "evaluation", _rows(played), f"success rates of {len(played)} of {len(config.env.tasks)} tasks"
        )
    await run.stages.drain()
    solved = solved_goals(config, [report for modes in played.values() for report in modes.values()]) or {}
    result = {
        "policy": str(policy.path),
        "iteration": policy.iteration,
        "weights_digest": digest,
        "stand_in_assets": any(each["stand_in_assets"] for each in seen.values()),
        "solved_at_reset": solved,
        "unrestorable": unrestorable_lines(run.folder.unrestorable()),
        "tasks": {task: {mode: _rate(report) for mode, report in modes.items()} for task, modes in played.items()},
        "mean_success_rate": {mode: _mean(played, mode) for mode in MODES},
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


async def _play(run: Run, number: int, mode: str) -> NodeReport:
    node_id = f"{mode}-{number}"
    config = {"mode": mode, "task": number}
    stage = run.stages.path(0, node_id)
    return await submit_node(NodeWork(node_id, "tasks:play_evaluation", "rollout", 0, config, stage=stage))


def _rate(report: NodeReport) -> dict[str, float]:
    rate = report.metrics["eval/success_rate"]
    episodes, successes = round(rate.weight), round(rate.value * rate.weight)
    low, high = wilson_interval(successes, episodes)
    steps = report.metrics["eval/episode_steps"].value
    numbers = {"success_rate": successes / episodes, "low": low, "high": high, "mean_steps": steps}
    return {"episodes": episodes, "successes": successes, **numbers}


def _mean(played: dict[str, dict[str, NodeReport]], mode: str) -> float:
    rates = [_rate(modes[mode])["success_rate"] for modes in played.values()]
    return sum(rates) / len(rates)


def _rows(played: dict[str, dict[str, NodeReport]]) -> list[dict[str, Any]]:
    rates = {(task, mode): _rate(report) for task, modes in played.items() for mode, report in modes.items()}
    return [{"task": task, "mode": mode, **rate} for (task, mode), rate in rates.items()]


def evaluation_lines(result: dict[str, Any]) -> str:
    """Format an evaluation's result for a terminal: a line per task and mode, then the means."""
    lines = [
        f"{task} {mode}: {rate['successes']}/{rate['episodes']} = {rate['success_rate']:.3f} "
        f"[{rate['low']:.3f}, {rate['high']:.3f}] in {rate['mean_steps']:.0f} steps"
        for task, modes in result["tasks"].items()
        for mode, rate in modes.items()
    ]
    solved = [
        f"{task}: {len(goals)} goals are solved at reset, without the policy: {', '.join(map(str, goals))}"
        for task, goals in result["solved_at_reset"].items()
    ]
    stand_in = (
        ["stand-in assets: results are not comparable to the published benchmark"] if result["stand_in_assets"] else []
    )
    return "\n".join(
        [*lines, f"mean {json.dumps(result['mean_success_rate'])}", *solved, *stand_in, *result["unrestorable"]]
    )
