"""Jobs whose rows form groups: siblings that share a prompt or an initial state."""

from pydantic import model_validator

from embodyflow.algorithms.algorithm_registry import ADVANTAGES
from embodyflow.config.autoscale import AutoscaleConfig
from embodyflow.config.base import PositiveInt
from embodyflow.config.run import RolloutConfig, RunConfig


class GroupRolloutConfig(RolloutConfig):
    """How rollout workers collect groups of rows.

    Attributes:
        num_groups: Prompts or initial states per iteration, at least one per worker. The shares of two workers differ
            by at most one group.
        group_size: Rows per prompt or initial state; at least 2 if the advantage compares them.
        autoscale: How the number of rollout processes follows waiting times; ``null`` keeps ``num_workers``.
    """

    num_groups: PositiveInt
    group_size: PositiveInt
    autoscale: AutoscaleConfig | None = None

    @model_validator(mode="after")
    def _check_num_groups(self) -> "GroupRolloutConfig":
        if self.num_workers > self.num_groups:
            raise ValueError(
                f"num_workers={self.num_workers}: must be at most num_groups={self.num_groups}, since a worker plays "
                "whole groups; raise num_groups to use more workers"
            )
        return self

    @model_validator(mode="after")
    def _check_autoscale(self) -> "GroupRolloutConfig":
        if self.autoscale is None:
            return self
        self.autoscale.check_start(self.num_workers, runs_ahead=self.max_staleness > 0 or self.mode == "streaming")
        if self.most_workers > self.num_groups:
            raise ValueError(
                f"autoscale.max_workers={self.most_workers}: must be at most num_groups={self.num_groups}, since a "
                "worker plays whole groups"
            )
        if self.swaps_weights:
            raise ValueError(
                "autoscale: allowed with interrupt.every=null; with it, rollouts of several iterations take turns, and "
                "no moment is between two of them"
            )
        return self

    @property
    def fewest_workers(self) -> int:
        """Number of rollout workers that are there in every iteration."""
        return self.num_workers if self.autoscale is None else self.autoscale.min_workers

    @property
    def most_workers(self) -> int:
        """Number of rollout workers that an iteration may have."""
        return self.num_workers if self.autoscale is None else self.autoscale.max_workers


class GroupedConfig(RunConfig):
    """The configuration of a run whose rows form groups."""

    rollout: GroupRolloutConfig

    @property
    def compares_rows(self) -> bool:
        """True if advantages may compare the rows of a group."""
        return True

    @property
    def rows_per_iteration(self) -> int:
        """Rows of one iteration's first round of groups."""
        return self.rollout.num_groups * self.rollout.group_size

    @property
    def full_batch(self) -> int:
        """Rows that one iteration trains on if no group is dropped."""
        return (self.filter.num_groups or self.rollout.num_groups) * self.rollout.group_size

    def minibatch_fraction(self, num_rows: int) -> float:
        """Return the size of a mini-batch of ``num_rows`` kept rows relative to a full one, at most 1."""
        num_minibatches = self.trainer.num_minibatches
        rows_of_one = num_rows / min(num_minibatches, num_rows)  # a few rows make fewer mini-batches
        return min(rows_of_one * num_minibatches / self.full_batch, 1.0)

    @model_validator(mode="after")
    def _check_siblings(self) -> "GroupedConfig":
        estimators, name = ADVANTAGES.entries, self.algorithm.advantage
        if self.compares_rows and self.rollout.group_size == 1 and ADVANTAGES.resolve(name).needs_siblings:
            alone = ", ".join(each for each, entry in estimators.items() if not entry.needs_siblings)
            raise ValueError(
                f"rollout.group_size=1: algorithm.advantage={name} compares the rows of a group, which must have at "
                f"least 2; those that do not are {alone}"
            )
        return self

    @model_validator(mode="after")
    def _check_held_out(self) -> "GroupedConfig":
        if self.warm_start is not None and self.warm_start.until is not None:
            self._check_share("warm_start.until.num_held_out", self.warm_start.num_held_out)
        return self

    @model_validator(mode="after")
    def _check_filtered_groups(self) -> "GroupedConfig":
        if self.filter.num_groups is not None and self.filter.num_groups < self.rollout.num_workers:
            raise ValueError(
                f"filter.num_groups={self.filter.num_groups}: must give each of "
                f"rollout.num_workers={self.rollout.num_workers} a group"
            )
        return self

    def _check_share(self, key: str, number: int) -> None:
        """Refuse a number of rows that leaves a rollout worker without any."""
        if number < self.rollout.num_workers:
            raise ValueError(f"{key} must give each of rollout.num_workers={self.rollout.num_workers} a row")
