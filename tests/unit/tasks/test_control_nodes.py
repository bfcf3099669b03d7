"""The nodes of control tasks, against numbers worked out by hand."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from node_calls import call_of

import tasks
import tasks.control
from embodyflow.algorithms.algorithm_config import AlgorithmConfig
from embodyflow.algorithms.covariance import select_tokens
from embodyflow.algorithms.masked import one_rank
from embodyflow.config.composition.compose import compose_config
from embodyflow.data.batches import to_batch
from embodyflow.types import Batch


def rows():
    """Three pieces of at most two steps, rewards of 1: one terminated, one cut, one cut after a step."""
    mask = np.array([[[1], [1]], [[1], [1]], [[1], [0]]], bool)
    state = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    return to_batch(
        {
            "uid": np.array([10, 20, 30]),
            "group_id": np.array([10, 20, 30]),
            "policy_version": np.zeros(3, np.int64),
            "seed": np.array([7, 8, 9]),
            "instruction_ids": np.zeros((3, 1), np.int64),
            "state": state,
            "final_state": np.array([[100, 0], [200, 0], [300, 0]], np.float32),
            "terminated": np.array([True, False, False]),
            "action_tokens": state,
            "log_probs": np.zeros((3, 2, 1), np.float32),
            "rewards": mask.astype(np.float32),
            "loss_mask": mask,
        }
    )


class FirstFeature:
    """An engine whose critic returns the first feature of a state."""

    config = compose_config(["experiment=reacher", "algorithm=ppo", "algorithm.gamma=0.5", "algorithm.whiten=null"])
    all_reduce = staticmethod(one_rank)

    def values(self, batch: Any) -> torch.Tensor:
        return batch["state"][..., 0] * batch["loss_mask"].any(-1)


def test_a_cut_episode_is_bootstrapped_and_a_terminated_one_is_not():
    worker = FirstFeature()
    batch = tasks.value_steps(rows(), worker=worker).batch
    assert batch["values"].tolist() == [[0, 2], [4, 6], [8, 0]]
    assert batch["bootstrap_values"].tolist() == [0, 200, 300]
    returns = tasks.compute_advantage(batch, worker=worker).batch["returns"]
    # A row's last return is 1 + V/2, the advantage before it δ + 0.5·0.95·A: with values 0 and 2, 2 + 0.475·(1 − 2).
    expected = torch.tensor([[2 - 0.475, 1.0], [4 + 0.475 * 95, 101.0], [151.0, 0.0]])
    torch.testing.assert_close(returns, expected)


class Scaling(FirstFeature):
    """The same engine, whose policy divides rewards by two."""

    def scaled_rewards(self, batch: Any) -> torch.Tensor:
        return batch["rewards"] / 2


def test_values_estimate_sums_of_scaled_rewards():
    batch = rows()
    batch["running_returns"] = torch.tensor([[1.0, 1.5], [3.0, 2.5], [4.0, 0.0]])
    batch = tasks.value_steps(batch, worker=Scaling()).batch
    assert batch["rewards"].flatten().tolist() == [0.5, 0.5, 0.5, 0.5, 0.5, 0]
    batch = tasks.compute_advantage(batch, worker=Scaling()).batch
    # A cut row's last return is r/2 + V/2, where V is the critic's value of the final state.
    assert batch["returns"][1:].flatten()[[1, 2]].tolist() == [0.5 + 100, 0.5 + 150]
    split = tasks.split_decisions(batch).batch
    assert split["running_returns"].flatten().tolist() == [1, 1.5, 3, 2.5, 4], "training counts them"


def test_every_decision_becomes_a_row():
    worker = FirstFeature()
    batch = tasks.compute_advantage(tasks.value_steps(rows(), worker=worker).batch, worker=worker).batch
    split = tasks.split_decisions(batch).batch
    assert split["uid"].tolist() == [10, 11, 20, 21, 30]
    assert len(split["seed"].unique()) == 5
    assert split["state"][:, 0, 0].tolist() == [0, 2, 4, 6, 8]
    assert split["returns"][:, 0].tolist() == batch["returns"][batch["loss_mask"].any(-1)].tolist()
    assert split["loss_mask"].all() and split["loss_mask"].shape == (5, 1, 1)


@pytest.mark.parametrize(("fraction", "expected"), [(0.003, 3), (0.25, 250)])
def test_a_loss_that_draws_tokens_draws_them_decision_by_decision(fraction: float, expected: int) -> None:
    """Ten pieces of five environments, of a hundred steps each."""
    steps = torch.randn(10, 100, 1, generator=torch.Generator().manual_seed(0))
    columns = dict.fromkeys(tasks.control.DECISION_COLUMNS, steps) | {"loss_mask": torch.ones(10, 100, 1).bool()}
    columns |= dict.fromkeys(tasks.control.ROW_COLUMNS, torch.zeros(10))
    columns |= {"uid": 100 * torch.arange(10), "seed": torch.arange(10) % 5 + 2**62}
    split = tasks.split_decisions(Batch(columns, batch_size=[10])).batch
    algorithm = AlgorithmConfig(loss="clip_cov", covariance={"fraction": fraction, "low": 0, "high": 1e9})
    selected = select_tokens(
        *(split[name].flatten(1) for name in ("log_probs", "advantages", "loss_mask")), split["seed"], algorithm
    )
    assert selected.sum() == expected, "all vary with their advantage, so the fraction decides"


def test_steps_are_counted_and_returns_averaged():
    columns = {name: column.numpy() for name, column in rows().items()} | {"num_steps": np.array([2, 2, 1])}
    finished = SimpleNamespace(returns=[1.0, 4.0], lengths=[10, 20], successes=[])
    folders = []

    def collect(iteration, draws, folder):
        folders.append(folder)
        return columns, finished

    worker = SimpleNamespace(collect=collect, fault_metrics=dict)
    call = call_of("rollout", iteration=3, run_folder="/runs/mine")
    metrics = tasks.collect_steps(None, worker=worker, call=call).metrics
    assert metrics["rollout/num_steps"].value == 5
    assert (metrics["rollout/reward"].value, metrics["rollout/reward"].weight) == (2.5, 2)
    finished.returns.clear()
    not_kept = call_of("rollout", iteration=3)
    assert "rollout/reward" not in tasks.collect_steps(None, worker=worker, call=not_kept).metrics
    assert folders == [Path("/runs/mine/open_episodes"), None]
