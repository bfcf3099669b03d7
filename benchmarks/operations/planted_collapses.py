"""The collapses that :mod:`benchmarks.operations.health` plants in runs.

A collapse is a wrong setting, which lasts until a roll-back changes it, or a fault of something that the run depends
on. A fault lasts for a number of iterations that are played, as an outage does: a roll-back repeats iterations, but
does not end the fault.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from embodyflow.data.metrics import mean
from embodyflow.types import Batch, NodeOutput
from tasks.rewards import reward


@dataclass(frozen=True)
class Fault:
    """What spoils the rows of some iterations.

    Attributes:
        column: Column whose first appearance is spoiled, with all that follows from it.
        spoil: Returns the output of the node with spoiled rows.
        iterations: Number of iterations that it lasts.
    """

    column: str
    spoil: Callable[[NodeOutput], NodeOutput]
    iterations: int


@dataclass(frozen=True)
class Collapse:
    """A planted collapse.

    Attributes:
        title: Description of what is planted, for tables.
        fault: Fault that causes it; ``None`` if a setting does.
        rate_factor: Factor of the learning rate.
    """

    title: str
    fault: Fault | None = None
    rate_factor: float = 1.0


def _advantages(change: Callable[[Batch], torch.Tensor]) -> Callable[[NodeOutput], NodeOutput]:
    """Return a fault that changes the advantages, float32 ``[N, T, L]``."""

    def spoil(output: NodeOutput) -> NodeOutput:
        batch = output.batch
        assert batch is not None
        batch["advantages"] = change(batch) * batch["loss_mask"]
        return output

    return spoil


def _outcomes(change: Callable[[Batch], torch.Tensor]) -> Callable[[NodeOutput], NodeOutput]:
    """Return a fault that changes the rows' outcomes, bool ``[N]``, and the rewards and metrics that follow."""

    def spoil(output: NodeOutput) -> NodeOutput:
        batch, metrics = output.batch, dict(output.metrics)
        assert batch is not None
        success = change(batch)
        batch["success"] = success.to(batch["success"].dtype)
        found = mean(success.double().mean().item(), len(batch))
        metrics["rollout/success_rate"] = found
        if "scores" in set(batch.keys()):
            batch["scores"] = success.to(batch["scores"].dtype)
            metrics["rollout/reward"] = found
        if "rewards" in set(batch.keys()):
            batch, rewarded = reward(batch, None)
            metrics |= rewarded
        return NodeOutput(batch, metrics, output.info)

    return spoil


def _with_nan(batch: Batch) -> torch.Tensor:
    batch["advantages"][:1] = torch.nan
    return batch["advantages"]


def _likely(batch: Batch) -> torch.Tensor:
    """Return advantages of deviation 3 that grow with a token's log-prob: the gradient lowers the entropy."""
    log_probs = batch["log_probs"]
    taken = log_probs[batch["loss_mask"]]
    return 3.0 * (log_probs - taken.mean()) / taken.std().clamp(min=1e-6)


COLLAPSES: Mapping[str, Collapse] = {
    "rate_times_30": Collapse("a learning rate × 30", rate_factor=30.0),
    "nan": Collapse("NaN in the advantages", Fault("advantages", _advantages(_with_nan), 1)),
    "zero_entropy": Collapse(
        "advantages pay for likely tokens, which leaves no entropy", Fault("advantages", _advantages(_likely), 8)
    ),
    "no_comparison": Collapse(
        "all advantages are 5, whatever the outcome",
        Fault("advantages", _advantages(lambda batch: torch.full_like(batch["advantages"], 5.0)), 8),
    ),
    "huge_reward": Collapse(
        "advantages × 10,000, as by a reward in the wrong unit",
        Fault("advantages", _advantages(lambda batch: batch["advantages"] * 1e4), 8),
    ),
    "broken_reward": Collapse(
        "the reward takes failure for success, and success for failure",
        Fault("success", _outcomes(lambda batch: ~batch["success"].bool()), 8),
    ),
    "hacked_reward": Collapse(
        "the reward pays for length instead of success",
        Fault("success", _outcomes(lambda batch: batch["num_steps"] > batch["num_steps"].double().mean()), 12),
    ),
    "dead_environment": Collapse(
        "no row succeeds", Fault("success", _outcomes(lambda batch: torch.zeros_like(batch["success"])), 10)
    ),
}
"""Collapses by name."""
