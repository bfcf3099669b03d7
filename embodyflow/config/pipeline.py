"""The graph of an iteration, and the filter that chooses the groups to train on."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from embodyflow.config.base import Config, Fraction, Place, PositiveInt


class PipelineConfig(Config):
    """The source of the graph.

    Attributes:
        name: Built-in pipeline, used unless custom_fn or yaml is set. The algorithm's recipe sets it.
        custom_fn: Function ``module:function`` that returns a ``TaskGraph``; ``null`` if unused.
        yaml: Path of a graph in YAML; ``null`` if unused.
        task_runs: Unit of a Prefect task run. ``node``: one task run per node, in one flow run per iteration.
            ``iteration``: one task run per iteration, with its nodes and their times in an event, and the nodes of a
            single trainer rank in one call, for iterations of a second or less.
    """

    name: Place | None = None
    custom_fn: Place | None = None
    yaml: Place | None = None
    task_runs: Literal["node", "iteration"] = "node"

    @model_validator(mode="after")
    def _require_one_source(self) -> "PipelineConfig":
        if self.custom_fn is not None and self.yaml is not None:
            raise ValueError("custom_fn and yaml must not both be set")
        if not self.source():
            raise ValueError("name, custom_fn or yaml must be set")
        return self

    def source(self) -> dict[str, str]:
        """Return the setting in effect as a mapping with one key; it is empty if nothing is set."""
        for key in ("custom_fn", "yaml", "name"):
            value = getattr(self, key)
            if value is not None:
                return {key: value}
        return {}


class FilterConfig(Config):
    """The filter that ``embodied_sampling`` and ``dynamic_sampling`` apply to groups.

    The policy's loss is a mean over a full batch, so a group that is dropped and not replaced contributes zero.

    Attributes:
        min_success: Lowest success rate of a kept group, inclusive.
        max_success: Highest success rate of a kept group, inclusive.
        drop_uniform: Drop groups whose members all have the same outcome (the same score in SRPO), since they carry
            no advantage.
        drop_truncated: Drop groups in which an episode reached the step limit.
        num_groups: Groups that ``dynamic_sampling`` collects per iteration; ``null`` means ``rollout.num_groups``.
        max_rerolls: Most extra rounds of ``rollout.num_groups`` groups that ``dynamic_sampling`` plays per iteration.
        max_staleness: How many policy versions the surplus groups of ``dynamic_sampling`` may lag behind the trainer
            when a later iteration trains on them instead of playing another round; 0 drops them.
    """

    min_success: Fraction = 0.0
    max_success: Fraction = 1.0
    drop_uniform: bool = True
    drop_truncated: bool = False
    num_groups: PositiveInt | None = None
    max_rerolls: Annotated[int, Field(ge=0, strict=True)] = 10
    max_staleness: Annotated[int, Field(ge=0, strict=True)] = 1

    @model_validator(mode="after")
    def _check_bounds(self) -> "FilterConfig":
        if self.min_success > self.max_success:
            raise ValueError(f"min_success={self.min_success} must not exceed max_success={self.max_success}")
        return self
