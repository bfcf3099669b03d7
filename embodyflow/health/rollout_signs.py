"""Detectors of rollouts that teach nothing good: dead groups, drifting lengths, hacked rewards, stale rows."""

import statistics
from collections.abc import Sequence

from embodyflow.health.history import Finding, History, Record
from embodyflow.health.settings import DeadGroupsConfig, LengthDriftConfig, RewardHackingConfig, StalenessConfig

LENGTH = "rollout/episode_steps"
HELD_OUT = {
    "eval/greedy_success_rate": ("eval/greedy_success_low", "eval/greedy_success_high"),
    "eval/sampled_success_rate": ("eval/sampled_success_low", "eval/sampled_success_high"),
    "eval/return": ("eval/return_low", "eval/return_high"),
}
"""Results of evaluations with the ends of their 95 % intervals."""
REWARDS = ("rollout/reward", "rollout/success_rate")
"""Results of training, the first one that a run has."""


def dead_groups(history: History, config: DeadGroupsConfig) -> Finding | None:
    """Find iterations without mixed groups whose groups do not all succeed."""
    mixed = history.recent("groups/mixed_fraction", config.patience)
    solved = history.recent("groups/all_success_fraction", config.patience)
    if not mixed or max(mixed) >= config.min_mixed or (solved and max(solved) >= config.solved):
        return None
    text = f"groups/mixed_fraction={mixed[-1]:.4g} is below {config.min_mixed:g} in {config.patience} iterations"
    return Finding("groups/mixed_fraction", mixed[-1], config.min_mixed, text)


def length_drift(history: History, config: LengthDriftConfig) -> Finding | None:
    """Find rows that are much longer or shorter than those of the first iterations, or that are mostly cut."""
    recent, first = history.recent(LENGTH, config.patience), history.first_median(LENGTH, config.baseline)
    if not recent:
        return None
    if config.limit is not None and min(recent) >= config.limit:
        text = f"{LENGTH}={recent[-1]:.4g} has reached {config.limit:g}, at which most rows are cut"
        return Finding(LENGTH, recent[-1], config.limit, text)
    if not first or len(history.values(LENGTH)) < config.baseline + config.patience:
        return None
    most, least = config.longer * first, config.shorter * first
    if min(recent) > most:
        return Finding(LENGTH, recent[-1], most, f"{LENGTH}={recent[-1]:.4g} has grown above {most:.4g}")
    if max(recent) < least:
        return Finding(LENGTH, recent[-1], least, f"{LENGTH}={recent[-1]:.4g} has fallen below {least:.4g}")
    return None


def reward_hacking(history: History, config: RewardHackingConfig) -> Finding | None:
    """Find a training reward that rose while the held-out result fell further than chance explains.

    The newest evaluation is compared with the best one before it, by their 95 % intervals.
    """
    for name, (low, high) in HELD_OUT.items():
        measured = [each for each in history.evaluations if {name, low, high} <= each.keys()]
        if len(measured) < 2:
            continue
        newest, best = measured[-1], max(measured[:-1], key=lambda each: float(each[name]))
        most = best[low] - config.margin * (newest[high] - newest[low])
        before, now = (_reward_until(history, each, config.window) for each in (best, newest))
        if newest[high] < most and before is not None and now is not None and now > before:
            text = (
                f"{name} fell from {best[name]:.4g} to {newest[name]:.4g} while the training reward rose from "
                f"{before:.4g} to {now:.4g}"
            )
            return Finding(name, newest[name], most, text)
    return None


def staleness(history: History, config: StalenessConfig) -> Finding | None:
    """Find rows that lag too many versions behind the policy that trains on them."""
    for name in ("policy/staleness_mean", "stream/staleness"):
        recent = history.recent(name, config.patience)
        if recent and min(recent) > config.max_versions:
            text = f"{name}={recent[-1]:.4g} is above {config.max_versions:g} versions"
            return Finding(name, recent[-1], config.max_versions, text)
    return None


def _reward_until(history: History, evaluation: Record, window: int) -> float | None:
    """Return the mean training reward of the iterations before an evaluation; ``None`` without any."""
    earlier = [each for each in history.iterations if each["iteration"] <= evaluation["iteration"]]
    return next((mean for name in REWARDS if (mean := _mean(name, earlier[-window:])) is not None), None)


def _mean(name: str, records: Sequence[Record]) -> float | None:
    values = [each[name] for each in records if name in each]
    return statistics.fmean(values) if values else None
