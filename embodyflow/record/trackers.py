"""Sinks for metrics, histograms, pictures and videos besides the run's folder, chosen by ``tracking``."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from PIL import Image

from embodyflow.config import RunConfig
from embodyflow.errors import ConfigError
from embodyflow.record.episodes.episode_record import Array
from embodyflow.record.metrics_log import EVALUATED

EVALUATED_ITERATION = f"{EVALUATED}iteration"

_HISTOGRAM_BINS = 64


class Tracker(Protocol):
    """A sink for what a run measures and draws. A step is the index of an iteration."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one iteration."""

    def log_histogram(self, step: int, name: str, values: Array) -> None:
        """Record the distribution of values, one-dimensional and of any number type."""

    def log_image(self, step: int, name: str, path: Path) -> None:
        """Record a picture, a PNG."""

    def log_video(self, step: int, name: str, path: Path) -> None:
        """Record an animation, a GIF."""

    def close(self) -> None:
        """Flush and close."""


class TensorBoardTracker:
    """Event files for TensorBoard, written without PyTorch, which the flow's process would import for this alone.

    Args:
        folder: Folder of the event files.
    """

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter  # type: ignore[import-untyped]

        self._writer: Any = EventFileWriter(str(folder))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one iteration."""
        for name, value in metrics.items():
            self._add(step, {"tag": name, "simple_value": value})

    def log_histogram(self, step: int, name: str, values: Array) -> None:
        """Record the distribution of the finite values; without one, record nothing."""
        finite = np.asarray(values, np.float64)
        finite = finite[np.isfinite(finite)]
        if finite.size == 0:
            return
        counts, edges = np.histogram(finite, bins=_HISTOGRAM_BINS)
        histogram = {
            **{"min": finite.min(), "max": finite.max(), "num": finite.size, "sum": finite.sum()},
            **{"sum_squares": np.square(finite).sum(), "bucket_limit": edges[1:], "bucket": counts},
        }
        self._add(step, {"tag": name, "histo": histogram})

    def log_image(self, step: int, name: str, path: Path) -> None:
        """Record a picture as it is; TensorBoard shows an animation, too."""
        with Image.open(path) as picture:
            width, height = picture.size
        content = {"width": width, "height": height, "colorspace": 3, "encoded_image_string": path.read_bytes()}
        self._add(step, {"tag": name, "image": content})

    def log_video(self, step: int, name: str, path: Path) -> None:
        """Record an animation, which plays among TensorBoard's images."""
        self.log_image(step, f"{name}/video", path)

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()

    def _add(self, step: int, value: Mapping[str, object]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped]

        self._writer.add_event(Event(step=step, wall_time=time.time(), summary={"value": [value]}))


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
        self._newest = 0
        self._run.define_metric(f"{EVALUATED}*", step_metric=EVALUATED_ITERATION)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one iteration."""
        self._log(step, metrics)

    def log_histogram(self, step: int, name: str, values: Array) -> None:
        """Record the distribution of values."""
        import wandb

        self._log(step, {f"{name}/histogram": wandb.Histogram(values)})

    def log_image(self, step: int, name: str, path: Path) -> None:
        """Record a picture."""
        import wandb

        self._log(step, {f"{name}/picture": wandb.Image(str(path))})

    def log_video(self, step: int, name: str, path: Path) -> None:
        """Record an animation."""
        import wandb

        self._log(step, {f"{name}/video": wandb.Video(str(path), format="gif")})

    def close(self) -> None:
        """Flush and close."""
        self._run.finish()

    def _log(self, step: int, values: Mapping[str, Any]) -> None:
        """Record values of a step, or of the newest step if that is later.

        Weights & Biases drops values of an earlier step, such as those of an evaluation beside training. So evaluations
        are drawn over an axis of their own, which has their iteration.
        """
        self._newest = max(self._newest, step)
        axis = {EVALUATED_ITERATION: step} if any(name.startswith(EVALUATED) for name in values) else {}
        self._run.log({**values, **axis}, step=self._newest)


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
