"""Detectors of rollouts that teach nothing good: dead groups, drifting lengths, stale rows."""

from embodyflow.health.history import Finding, History
from embodyflow.health.settings import DeadGroupsConfig, LengthDriftConfig, StalenessConfig

LENGTH = "rollout/episode_steps"


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


def staleness(history: History, config: StalenessConfig) -> Finding | None:
    """Find rows that lag too many versions behind the policy that trains on them."""
    for name in ("policy/staleness_mean", "stream/staleness"):
        recent = history.recent(name, config.patience)
        if recent and min(recent) > config.max_versions:
            text = f"{name}={recent[-1]:.4g} is above {config.max_versions:g} versions"
            return Finding(name, recent[-1], config.max_versions, text)
    return None
