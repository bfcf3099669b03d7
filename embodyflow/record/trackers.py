"""Metric sinks besides ``metrics.jsonl``, chosen by ``tracking``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from embodyflow.config import RunConfig
from embodyflow.errors import ConfigError


class Tracker(Protocol):
    """A sink for the metrics of a run."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one iteration."""

    def close(self) -> None:
        """Flush and close."""


class TensorBoardTracker:
    """Event files for TensorBoard.

    Args:
        folder: Folder of the event files.
    """

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one iteration."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()


class WandbTracker:
    """A Weights & Biases run.

    Args:
        config: Run configuration.
        mode: ``"offline"`` or ``"online"``.
    """

    def __init__(self, config: RunConfig, mode: Literal["offline", "online"]) -> None:
        import wandb

        self._run: Any = wandb.init(
            project=config.tracking.wandb_project,
            id=config.run_id,
            resume="allow",
            mode=mode,
            dir=str(config.run_dir),
            config=config.model_dump(mode="json"),
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one iteration."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Flush and close."""
        self._run.finish()


def check_login() -> None:
    """Check that the user is logged in to Weights & Biases, which asks for the key in a terminal.

    Raises:
        ConfigError: The user is not logged in.
    """
    import wandb

    try:
        wandb.login()
    except wandb.Error as error:
        raise ConfigError(f"tracking.wandb=online: {error}; allowed without a login are offline, disabled") from error


def open_trackers(config: RunConfig) -> list[Tracker]:
    """Open the sinks that ``tracking`` names."""
    trackers: list[Tracker] = []
    if config.tracking.tensorboard:
        trackers.append(TensorBoardTracker(config.run_dir / "tensorboard"))
    if config.tracking.wandb != "disabled":
        trackers.append(WandbTracker(config, config.tracking.wandb))
    return trackers
