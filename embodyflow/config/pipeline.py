"""The graph of an iteration, and which of its groups of rows are learned from."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from embodyflow.config.base import Config, Fraction, PositiveInt


class PipelineConfig(Config):
    """Where the graph comes from.

    Attributes:
        name: Built-in pipeline, used when neither of the other two is set; the algorithm's recipe names it.
        custom_fn: ``"module:function"`` returning a ``TaskGraph``.
        yaml: path of a YAML graph.
        task_runs: what a Prefect task run stands for. ``node``: each can be retried and looked at by itself, in a flow
            run for each iteration. ``iteration``: all nodes as events with their times, and the commit; for iterations
            of a second or less.
    """

    name: str | None = None
    custom_fn: str | None = None
    yaml: str | None = None
    task_runs: Literal["node", "iteration"] = "node"

    @model_validator(mode="after")
    def _one_source(self) -> "PipelineConfig":
        if self.custom_fn is not None and self.yaml is not None:
            raise ValueError("custom_fn and yaml must not both be set")
        if not self.source():
            raise ValueError("name, custom_fn or yaml must be set")
        return self

    def source(self) -> dict[str, str]:
        """Return the one setting that counts, by its name."""
        for key in ("custom_fn", "yaml", "name"):
            value = getattr(self, key)
            if value is not None:
                return {key: value}
        return {}


class FilterConfig(Config):
    """Which groups ``embodied_sampling`` and ``dynamic_sampling`` keep.

    The policy's loss is a mean over a full batch: what the former drops, and the latter does not replace, adds nothing.

    Attributes:
        min_success, max_success: bounds (inclusive) of a kept group's success rate.
        drop_uniform: drop groups whose members all had the same outcome (score, in SRPO); they carry no advantage.
        drop_truncated: drop groups in which an episode hit the step limit.
        num_groups: groups that ``dynamic_sampling`` fills an iteration with; ``null`` means ``rollout.num_groups``.
        max_rerolls: rounds of ``rollout.num_groups`` further groups that it plays for them at most.
        max_staleness: versions of the policy that groups left over may lie behind when a later iteration trains on them
            instead of playing another round; 0 drops them.
    """

    min_success: Fraction = 0.0
    max_success: Fraction = 1.0
    drop_uniform: bool = True
    drop_truncated: bool = False
    num_groups: PositiveInt | None = None
    max_rerolls: Annotated[int, Field(ge=0, strict=True)] = 10
    max_staleness: Annotated[int, Field(ge=0, strict=True)] = 1

    @model_validator(mode="after")
    def _ordered(self) -> "FilterConfig":
        if self.min_success > self.max_success:
            raise ValueError(f"min_success={self.min_success} must not exceed max_success={self.max_success}")
        return self
