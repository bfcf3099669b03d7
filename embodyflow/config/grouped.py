"""Jobs whose rows come in groups: siblings that share one prompt or initial state."""

from typing import Annotated

from pydantic import Field, model_validator

from embodyflow.config.base import PositiveInt
from embodyflow.config.run import RolloutConfig, RunConfig


class GroupRolloutConfig(RolloutConfig):
    """How groups of rows are gathered.

    Attributes:
        num_groups: prompts or initial states per iteration.
        group_size: rows from each of them.
    """

    num_groups: PositiveInt
    group_size: Annotated[int, Field(ge=2)]

    @model_validator(mode="after")
    def _divides(self) -> "GroupRolloutConfig":
        if self.num_groups % self.num_workers:
            raise ValueError(f"num_groups={self.num_groups} must be a multiple of num_workers={self.num_workers}")
        return self


class GroupedConfig(RunConfig):
    """A run of a job whose rows come in groups."""

    rollout: GroupRolloutConfig

    @property
    def rows_per_iteration(self) -> int:
        """Rows gathered in one iteration, by the groups' first round."""
        return self.rollout.num_groups * self.rollout.group_size

    @property
    def full_batch(self) -> int:
        """Rows trained on in one iteration when no group is dropped."""
        return (self.filter.num_groups or self.rollout.num_groups) * self.rollout.group_size

    def share_left(self, num_rows: int) -> float:
        """Return how much of a full mini-batch one is when that many rows are left, at most 1."""
        num_minibatches = self.trainer.num_minibatches
        rows_of_one = num_rows / min(num_minibatches, num_rows)  # few rows are cut into fewer of them
        return min(rows_of_one * num_minibatches / self.full_batch, 1.0)

    @model_validator(mode="after")
    def _groups_fit(self) -> "GroupedConfig":
        if (self.filter.num_groups or self.rollout.num_groups) % self.rollout.num_workers:
            raise ValueError(
                f"filter.num_groups={self.filter.num_groups} must be a multiple of "
                f"rollout.num_workers={self.rollout.num_workers}"
            )
        return self

    def _check_share(self, key: str, number: int) -> None:
        """Refuse a number of rows of which some rollout worker would get none."""
        if number < self.rollout.num_workers:
            raise ValueError(f"{key} must give each of rollout.num_workers={self.rollout.num_workers} an episode")
