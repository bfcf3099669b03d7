"""Detectors of failing environments and of a slow machine. They read metrics that depend on timing."""

import math

from embodyflow.health.history import Finding, History, Record
from embodyflow.health.settings import EnvFaultsConfig, ThroughputDropConfig

FAULTS = ("perf/env_restarts", "perf/env_quarantined", "perf/redrawn_episodes")
EPISODES = "rollout/num_episodes"
SECONDS = "perf/iteration_seconds"


def env_faults(history: History, config: EnvFaultsConfig) -> Finding | None:
    """Find too many failures of environments and tools per episode."""
    newest = history.iterations[-config.window :]
    if len(newest) < config.window:
        return None
    faults, episodes = (math.fsum(_sum(each, names) for each in newest) for names in (FAULTS, (EPISODES,)))
    rate = faults / max(episodes, 1.0)  # where no episode ends, faults count in full
    if rate <= config.max_rate:
        return None
    text = f"{faults:.0f} failures of environments in {episodes:.0f} episodes are more than {config.max_rate:g} each"
    return Finding(_most(newest[-1]), rate, config.max_rate, text)


def throughput_drop(history: History, config: ThroughputDropConfig) -> Finding | None:
    """Find iterations that take much longer than those before."""
    before = history.median_before(SECONDS, config.patience, config.window)
    recent = history.recent(SECONDS, config.patience)
    if not before or not recent or min(recent) <= config.factor * before:
        return None
    text = f"{SECONDS}={recent[-1]:.4g} is more than {config.factor:g} times the median {before:.4g} before"
    return Finding(SECONDS, recent[-1], config.factor * before, text)


def _sum(record: Record, names: tuple[str, ...]) -> float:
    return math.fsum(record.get(name, 0.0) for name in names)


def _most(record: Record) -> str:
    """Return the kind of failure that an iteration had most of."""
    return max(FAULTS, key=lambda name: float(record.get(name, 0.0)))
