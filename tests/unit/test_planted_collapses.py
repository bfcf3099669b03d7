"""Planted collapses spoil rows together with the rewards and metrics that follow from them."""

import pytest
import torch
from tensordict import TensorDict

from benchmarks.operations.planted_collapses import COLLAPSES
from embodyflow.data.metrics import mean
from embodyflow.types import NodeOutput


def judged_rows() -> NodeOutput:
    """Return four rows of two tokens, the first of which succeeds, as the node of rewards returns them."""
    mask = torch.ones(4, 2, 1, dtype=torch.bool)
    mask[3, 1] = False
    columns = {
        "success": torch.tensor([True, False, False, False]),
        "scores": torch.tensor([1.0, 0.0, 0.0, 0.0]),
        "num_steps": torch.tensor([2, 2, 2, 1]),
        "loss_mask": mask,
        "rewards": torch.zeros(4, 2, 1),
    }
    return NodeOutput(TensorDict(columns, [4]), {"rollout/success_rate": mean(0.25, 4)})


@pytest.mark.parametrize(
    ("collapse", "success"),
    [
        ("broken_reward", [0.0, 1.0, 1.0, 1.0]),
        ("hacked_reward", [1.0, 1.0, 1.0, 0.0]),
        ("dead_environment", [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_outcomes_are_spoiled_with_rewards_and_metrics(collapse: str, success: list[float]) -> None:
    fault = COLLAPSES[collapse].fault
    assert fault is not None and fault.column == "success"
    output = fault.spoil(judged_rows())
    assert output.batch is not None and output.batch["success"].float().tolist() == success
    assert output.batch["rewards"].flatten(1).sum(1).tolist() == success
    found = output.metrics["rollout/success_rate"]
    assert found.value == pytest.approx(sum(success) / 4) and found.weight == 4


def test_faults_of_advantages_keep_to_the_tokens_that_are_trained_on() -> None:
    for name in ("nan", "zero_entropy", "no_comparison", "huge_reward"):
        fault = COLLAPSES[name].fault
        assert fault is not None and fault.column == "advantages"
        output = judged_rows()
        assert output.batch is not None
        output.batch["advantages"] = torch.ones(4, 2, 1)
        output.batch["log_probs"] = -torch.arange(8.0).view(4, 2, 1)
        spoiled = fault.spoil(output).batch
        assert spoiled is not None and spoiled["advantages"][3, 1] == 0
        assert not torch.equal(spoiled["advantages"][:3], torch.ones(3, 2, 1))
