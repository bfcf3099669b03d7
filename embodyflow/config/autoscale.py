"""How the number of rollout workers follows the times that trainer and rollout workers wait."""

from typing import Annotated

from pydantic import Field, model_validator

from embodyflow.config.base import Config, PositiveInt

OpenShare = Annotated[float, Field(gt=0, lt=1)]


class AutoscaleConfig(Config):
    """Bounds of the number of rollout workers, and when it changes: by one, at the border of two iterations.

    Attributes:
        min_workers: Fewest rollout workers. Evaluations use this many, so that their results do not depend on timing.
        max_workers: Most rollout workers. The run reserves their CPUs and GPUs.
        trainer_wait: Share of an iteration. A worker starts if the trainer waits for rows for a larger one.
        rollout_idle: Share of an iteration. A worker ends if the others, with its work, would be idle for a larger one.
        patience: Number of consecutive iterations with the present number that must ask for the same change.
    """

    min_workers: PositiveInt = 1
    max_workers: PositiveInt
    trainer_wait: OpenShare = 0.2
    rollout_idle: OpenShare = 0.3
    patience: PositiveInt = 2

    @model_validator(mode="after")
    def _check_bounds(self) -> "AutoscaleConfig":
        if self.min_workers > self.max_workers:
            raise ValueError(f"min_workers={self.min_workers}: must be at most max_workers={self.max_workers}")
        return self

    def check_start(self, num_workers: int, *, runs_ahead: bool) -> None:
        """Check the other keys of ``rollout`` that this section needs.

        Args:
            num_workers: Number of rollout workers that the run starts with.
            runs_ahead: Whether rollouts may run ahead of training.
        """
        if not runs_ahead:
            raise ValueError(
                "autoscale: allowed with max_staleness of at least 1 or mode=streaming; otherwise rollout workers and "
                "trainer take turns, and both wait whatever their number"
            )
        if not self.min_workers <= num_workers <= self.max_workers:
            raise ValueError(
                f"num_workers={num_workers}: allowed with autoscale are {self.min_workers} to {self.max_workers}, its "
                "min_workers and max_workers"
            )
