"""Results of learning for a finished run's summary, from the lines of its ``metrics.jsonl``."""

from collections.abc import Mapping, Sequence
from typing import Any


def success_summary(records: Sequence[Mapping[str, Any]], iterations: int) -> dict[str, Any]:
    """Return the evaluation's success rates before and after training."""
    evaluations = {r["iteration"]: r for r in records if "eval/greedy_success_rate" in r}
    before, after = evaluations[0], evaluations[iterations]
    return {
        "success_rate_before": before["eval/greedy_success_rate"],
        "success_rate_after": after["eval/greedy_success_rate"],
        "sampled_success_rate_before": before["eval/sampled_success_rate"],
        "sampled_success_rate_after": after["eval/sampled_success_rate"],
        "success_interval_before": [before["eval/greedy_success_low"], before["eval/greedy_success_high"]],
        "success_interval_after": [after["eval/greedy_success_low"], after["eval/greedy_success_high"]],
        "num_goals": int(after["eval/num_goals"]),
        **({"solved_at_reset": after["solved_at_reset"]} if "solved_at_reset" in after else {}),
        **_warm_start_summary(records),
    }


def _warm_start_summary(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how a warm start with ``warm_start.until`` ended; empty without one."""
    for record in records:
        if "sft/reached" in record:
            return {
                "warm_start_steps": int(record["sft/steps"]),
                "warm_start_success_rate": record["sft/success_rate"],
                "warm_start_reached": bool(record["sft/reached"]),
            }
    return {}


def task_summary(records: Sequence[Mapping[str, Any]], iterations: int, tasks: Sequence[str]) -> dict[str, Any]:
    """Return each task's greedy success rates before and after training; empty if there is only one task."""
    if len(tasks) == 1:
        return {}
    name, by_index = "eval/greedy_success_rate", {r["iteration"]: r for r in records if "eval/num_goals" in r}
    return {
        f"success_rates_{moment}": {task: by_index[index][f"{name}/{task}"] for task in tasks}
        for moment, index in (("before", 0), ("after", iterations))
    }


def unrestorable_count(summary: Mapping[str, Any]) -> str:
    """Return the end of a summary's line that counts the tasks not restored by their seed, if it has any."""
    return f" unrestorable={len(summary['unrestorable'])}" if summary.get("unrestorable") else ""


def success_line(summary: Mapping[str, Any]) -> str:
    """Format :func:`success_summary` as one line."""
    return (
        f"success_rate before={summary['success_rate_before']:.3f} after={summary['success_rate_after']:.3f} "
        f"goals={summary['num_goals']} seed={summary['seed']} seconds={summary['train_seconds']:.0f}"
        f"{unrestorable_count(summary)}"
    )


def return_summary(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean returns of the first and the last iteration that finished episodes; ``None`` without one."""
    returns = [r["rollout/reward"] for r in records if "rollout/reward" in r] or [None]
    return {"return_first": returns[0], "return_last": returns[-1]}


def evaluated_return_summary(records: Sequence[Mapping[str, Any]], iterations: int) -> dict[str, Any]:
    """Return the evaluation's mean returns before and after training, and success rates if it has them.

    All have 95 % intervals.
    """
    evaluations = {r["iteration"]: r for r in records if "eval/return" in r}
    moments = {"before": evaluations[0], "after": evaluations[iterations]}
    means = {f"return_{moment}": r["eval/return"] for moment, r in moments.items()}
    intervals = {
        f"return_interval_{moment}": [r["eval/return_low"], r["eval/return_high"]] for moment, r in moments.items()
    }
    for moment, r in moments.items():
        if "eval/greedy_success_rate" in r:
            means[f"success_rate_{moment}"] = r["eval/greedy_success_rate"]
            intervals[f"success_interval_{moment}"] = [r["eval/greedy_success_low"], r["eval/greedy_success_high"]]
    return means | intervals | {"num_evaluation_episodes": int(moments["after"]["eval/num_episodes"])}


def return_line(summary: Mapping[str, Any]) -> str:
    """Format :func:`return_summary` as one line."""
    first, last = (
        "none" if value is None else f"{value:.1f}" for value in (summary["return_first"], summary["return_last"])
    )
    evaluated = ""
    if "return_after" in summary:
        evaluated = f" before={summary['return_before']:.1f} after={summary['return_after']:.1f}"
    if "success_rate_after" in summary:
        evaluated += f" success={summary['success_rate_after']:.3f}"
    line = f"return first={first} last={last}{evaluated} seed={summary['seed']} seconds={summary['train_seconds']:.0f}"
    return line + unrestorable_count(summary)
