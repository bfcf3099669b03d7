"""The nodes of the critic and the advantages from its values, against numbers worked out by hand."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from node_calls import call_of

import tasks
from embodyflow.algorithms.masked import one_rank
from embodyflow.data.batches import to_batch
from embodyflow.data.metrics import as_metrics
from embodyflow.seeding import derive_seed
from embodyflow.types import Batch

CALL = call_of()


def rows() -> Batch:
    """Two episodes of at most three decisions of two tokens: a success in three tokens, a failure in six."""
    mask = np.array([[[1, 1], [1, 0], [0, 0]], [[1, 1], [1, 1], [1, 1]]], bool)
    columns = {"uid": np.arange(2), "group_id": np.array([0, 1]), "success": np.array([True, False]), "loss_mask": mask}
    values = np.array([[0.5, 0.75, 0.0], [0.5, 0.25, 0.125]], np.float32)
    return to_batch(columns | {"values": values})


def test_a_decision_is_one_step_of_gae(tiny_config) -> None:
    words = ("algorithm.advantage=gae", "+algorithm.gamma=0.5", "+algorithm.lam=0.5", "+algorithm.whiten=null")
    worker = SimpleNamespace(config=tiny_config(*words), all_reduce=one_rank)
    batch: Any = tasks.compute_advantage(tasks.compute_reward(rows()).batch, worker=worker).batch
    # Backwards, delta = r + V'/2 - V and A = delta + A'/4. Success: 1 - 3/4, then 3/8 - 1/2 + 1/16. Failure: -1/8,
    # then 1/16 - 1/4 - 1/32, then 1/8 - 1/2 - 7/128.
    steps = torch.tensor([[-1 / 16, 1 / 4, 0], [-55 / 128, -7 / 32, -1 / 8]])
    torch.testing.assert_close(batch["advantages"], steps.unsqueeze(-1) * batch["loss_mask"], atol=0, rtol=0)
    torch.testing.assert_close(batch["returns"], steps + batch["values"], atol=0, rtol=0)


def test_an_action_with_a_value_is_one_step_of_gae(tiny_config) -> None:
    """Two decisions of two actions of two tokens; the success ends after three actions, and the third in one token."""
    mask = torch.tensor([[[1, 1, 1, 1], [1, 0, 0, 0]], [[1, 1, 1, 1], [1, 1, 1, 1]]], dtype=torch.bool)
    batch = to_batch({"uid": np.arange(2), "group_id": np.arange(2), "success": np.array([True, False])})
    batch["loss_mask"] = mask
    batch["values"] = torch.tensor([[[0.5, 0.75], [0.25, 0.0]], [[0.5, 0.25], [0.125, 0.5]]])
    words = ("algorithm.advantage=gae", "+algorithm.gamma=0.5", "+algorithm.lam=0.5", "+algorithm.whiten=null")
    worker = SimpleNamespace(config=tiny_config(*words), all_reduce=one_rank)
    output: Any = tasks.compute_advantage(tasks.compute_reward(batch).batch, worker=worker)
    # Backwards, delta = r + V'/2 - V and A = delta + A'/4. Success: 1 - 1/4, then 1/8 - 3/4 + 3/16, then
    # 3/8 - 1/2 - 7/64. Failure: -1/2, then 1/4 - 1/8 - 1/8, then 1/16 - 1/4 + 0, then 1/8 - 1/2 - 3/64.
    steps = torch.tensor([[[-15 / 64, -7 / 16], [3 / 4, 0]], [[-27 / 64, -3 / 16], [0, -1 / 2]]])
    expected = steps.repeat_interleave(2, dim=-1) * mask
    torch.testing.assert_close(output.batch["advantages"], expected, atol=0, rtol=0)
    returns = (steps + batch["values"]) * mask.unflatten(-1, (2, 2)).any(-1)
    torch.testing.assert_close(output.batch["returns"], returns, atol=0, rtol=0)
    worker.step_both = lambda batch, **arguments: {}
    trained: Any = as_metrics(tasks.train_actor_critic(batch, worker=worker, call=CALL).metrics)
    wanted = (
        (returns - batch["values"])[mask.unflatten(-1, (2, 2)).any(-1)].var(),
        returns.flatten()[[0, 1, 2, 4, 5, 6, 7]].var(),
    )
    assert trained["critic/explained_variance"].value == pytest.approx(1 - float(wanted[0] / wanted[1]), rel=1e-5)


def test_advantages_are_whitened_over_decisions_of_all_ranks(tiny_config) -> None:
    worker = SimpleNamespace(config=tiny_config("algorithm.advantage=gae"), all_reduce=one_rank)
    whole: Any = tasks.compute_advantage(tasks.compute_reward(rows()).batch, worker=worker).batch
    raw = torch.tensor([0.5, 0.25, -0.5, -0.25, -0.125])  # outcome (1 or 0) minus value
    expected = (raw - raw.mean()) / raw.std()
    torch.testing.assert_close(whole["advantages"][..., 0][whole["loss_mask"].any(-1)], expected)

    class OtherRank:
        """Adds what the second row's rank would: first sum and count, then the squares about the common mean."""

        answers = iter([torch.tensor([-0.875, 3.0]).double(), (raw[2:] - raw.mean()).square().sum().double()])

        def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
            return tensor + next(self.answers)

    worker.all_reduce = OtherRank()
    first: Any = tasks.compute_advantage(tasks.compute_reward(rows()[:1]).batch, worker=worker).batch
    torch.testing.assert_close(first["advantages"], whole["advantages"][:1])


def test_values_are_those_of_the_engine() -> None:
    batch = rows()
    worker = SimpleNamespace(values=lambda batch: torch.full((2, 3), 2.0) * batch["loss_mask"].any(-1))
    output: Any = tasks.compute_value(batch, worker=worker)
    assert output.batch["values"].tolist() == [[2, 2, 0], [2, 2, 2]]
    metric = output.metrics["critic/value"]
    assert (metric.value, metric.weight) == (2.0, 5)
    worker.values = lambda batch: torch.full((2, 3, 2), 3.0) * batch["loss_mask"]  # a value for each of two actions
    metric = tasks.compute_value(batch, worker=worker).metrics["critic/value"]
    assert (metric.value, metric.weight) == (3.0, 9)


def test_the_critic_trains_on_its_own_draws_and_reports_the_explained_variance() -> None:
    batch, seen = rows(), dict[str, Any]()
    batch["returns"] = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])  # the first episode has no third decision
    worker = SimpleNamespace(
        step_critic=lambda batch, **arguments: seen.update(arguments) or {"critic/loss": 0.5}, all_reduce=one_rank
    )
    output = tasks.train_critic(batch, worker=worker, call=CALL)
    assert seen.pop("positions").tolist() == []
    assert seen == {"total_rows": 0, "seed": derive_seed(7, 4, "node"), "iteration": 4}
    errors = np.array([0.5, 0.25, -0.5, -0.25, -0.125])
    expected = 1 - errors.var() / np.array([1, 1, 0, 0, 0]).var()
    metrics = as_metrics(output.metrics)
    assert metrics["critic/explained_variance"].value == pytest.approx(expected, rel=1e-6)
    assert output.batch is batch and metrics["critic/loss"].value == 0.5


def test_returns_that_do_not_vary_explain_nothing() -> None:
    batch = rows()
    batch["returns"] = batch["loss_mask"].any(-1).float()
    worker = SimpleNamespace(step_critic=lambda batch, **arguments: {}, all_reduce=one_rank)
    assert tasks.train_critic(batch, worker=worker, call=CALL).metrics == {}
