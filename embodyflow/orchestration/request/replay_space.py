"""Room on the disk for the images of a replay buffer, checked before a run starts."""

from pathlib import Path

from embodyflow.config import RunConfig
from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.errors import ConfigError
from embodyflow.orchestration.run.storage_faults import free_bytes


def check_replay_space(config: RunConfig) -> None:
    """Refuse a run whose images will not fit on the disk of its folder.

    Raises:
        ConfigError: The disk has less room than the images take that the run has still to store.
    """
    if not isinstance(config, EmbodiedConfig) or not (needed := replayed_bytes(config)):
        return
    assert config.off_policy is not None
    there = sum(_size(config.run_dir / name) for name in ("replay", "demonstrations"))  # of a run to resume
    if (free := free_bytes(config.run_dir)) < needed - there:
        images = config.policy.replayed_images.items()
        sizes = ", ".join(f"{camera} {height}×{width}" for camera, (height, width, _) in images)
        raise ConfigError(
            f"off_policy.replay_capacity={config.off_policy.replay_capacity}: the images of {sizes} take up to "
            f"{(needed - there) / 1e9:.1f} GB and {free / 1e9:.1f} GB are free in run_root={config.run_root}; allowed "
            "is a smaller off_policy.replay_capacity, policy with smaller images, or run_root with more room"
        )


def replayed_bytes(config: EmbodiedConfig) -> int:
    """Return the bytes of the images that a run will have on disk, with episodes of full length.

    An episode has a frame more than decisions, and a demonstration one for each step. Transitions older than
    ``off_policy.replay_capacity`` are there as long as a kept checkpoint needs them.
    """
    images, settings = config.policy.replayed_images, config.off_policy
    if settings is None or not images:
        return 0
    of_iteration = config.rows_per_iteration * config.num_decisions
    kept = settings.replay_capacity + (config.kept_checkpoints + 1) * of_iteration
    decisions = min(kept, config.iterations * of_iteration)
    frames = decisions + -(-decisions // config.num_decisions)
    if config.warm_start is not None:
        frames += config.warm_start.num_demos * len(config.env.tasks) * config.env.max_steps
    return frames * sum(height * width * depth for height, width, depth in images.values())


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
