"""Evaluation of embodied jobs: success by task on goals that training never plays, greedy and sampled."""

import json
from collections.abc import Mapping
from typing import Any

from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.data.confidence_intervals import wilson_interval
from embodyflow.orchestration.evaluation.contact_sheets import draw_evaluation
from embodyflow.orchestration.evaluation.evaluation import MODES, solved_goals
from embodyflow.orchestration.evaluation.evaluation_request import EvaluatedPolicy
from embodyflow.orchestration.run.iterations.nodes import Run, submit_node
from embodyflow.orchestration.run.parity import check_parity, observe
from embodyflow.record.run_folder import RunFolder
from embodyflow.workers.calls import NodeReport, NodeWork


async def evaluate_tasks(run: Run, policy: EvaluatedPolicy) -> dict[str, Any]:
    """Play the goals of every task in both modes; return the tasks' part of ``evaluation.json``.

    Raises:
        ConfigError: The policy is shown something else than in training.
    """
    config = run.config
    assert isinstance(config, EmbodiedConfig)
    seen = await observe(run)
    if policy.iteration is not None:
        check_parity(RunFolder(policy.path), seen, run.folder.unrestorable().keys())
    played: dict[str, dict[str, NodeReport]] = {}
    for number, task in enumerate(config.env.tasks):
        played[task] = {mode: await _play(run, number, mode) for mode in MODES}
        await draw_evaluation(run, task, played[task]["greedy"])
        run.artifacts.put_table(
            "evaluation", _rows(played), f"success rates of {len(played)} of {len(config.env.tasks)} tasks"
        )
    await run.stages.drain()
    solved = solved_goals(config, [report for modes in played.values() for report in modes.values()]) or {}
    return {
        "stand_in_assets": any(each["stand_in_assets"] for each in seen.values()),
        "solved_at_reset": solved,
        "tasks": {task: {mode: _rate(report) for mode, report in modes.items()} for task, modes in played.items()},
        "mean_success_rate": {mode: _mean(played, mode) for mode in MODES},
    }


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


def success_lines(result: Mapping[str, Any]) -> list[str]:
    """Format the tasks' part of an evaluation for a terminal: a line per task and mode, then the means."""
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
    return [*lines, f"mean {json.dumps(result['mean_success_rate'])}", *solved, *stand_in]
