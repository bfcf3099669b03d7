"""The trainer's running baselines: the same on any ranks, part of a checkpoint, and changed by training alone."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from agent_jobs import agent_config, agent_words
from tensordict import TensorDict

import tasks
from benchmarks.control.in_process import InProcessRun
from embodyflow.algorithms.masked import one_rank
from embodyflow.training.agent_baselines import AgentBaselines

GAMES = (
    *("experiment=kuhn", "algorithm=rae", "warm_start=null", "rollout.max_response_tokens=48"),
    *("rollout.num_groups=2", "rollout.group_size=2"),
)


def games(num_rows: int) -> TensorDict:
    """Return rows in which the first agent writes two tokens and the second one, with random outcomes."""
    agents = torch.tensor([[1, 0, 2, 1]]).expand(num_rows, 4)[..., None]
    rewards = torch.randn(agents.shape, generator=torch.Generator().manual_seed(0))
    uids = torch.arange(num_rows) * 7 + 3
    columns = {"uid": uids, "token_agent": agents.int(), "loss_mask": agents > 0, "rewards": rewards}
    return TensorDict(columns, batch_size=[num_rows])


def two_ranks(work: Callable[[int, Callable[[torch.Tensor], torch.Tensor]], torch.Tensor]) -> list[torch.Tensor]:
    """Call ``work(rank, all_reduce)`` for two ranks whose sums are those of both."""
    given: list[list[torch.Tensor]] = [[], []]
    for rank in (0, 1):

        def keep(tensor: torch.Tensor, rank: int = rank) -> torch.Tensor:
            given[rank].append(tensor)
            return tensor

        work(rank, keep)
    sums = [left + right for left, right in zip(*given, strict=True)]
    return [work(rank, lambda tensor, left=list(sums): left.pop(0)) for rank in (0, 1)]


def test_the_order_is_that_of_the_uids_on_any_ranks() -> None:
    config, rows, positions = agent_config(*GAMES), games(6), np.arange(6)
    alone = AgentBaselines(config)
    expected = alone.of_tokens(rows, positions, 6, one_rank)
    assert not alone.values.any() and not expected[0].any() and expected[1:, rows["loss_mask"][0]].all()
    alone.advance(rows, positions, 6, one_rank)

    placed = torch.tensor([4, 0, 5, 2, 1, 3])  # the row at each position
    parts = (np.array([0, 1, 5]), np.array([2, 3, 4]))
    found = two_ranks(
        lambda rank, add: AgentBaselines(config).of_tokens(rows[placed[parts[rank]]], parts[rank], 6, add)
    )
    for rank in (0, 1):
        assert torch.equal(found[rank], expected[placed[parts[rank]]])

    def trained(rank: int, add: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        baselines = AgentBaselines(config)
        baselines.advance(rows[placed[parts[rank]]], parts[rank], 6, add)
        return baselines.values

    assert all(torch.equal(each, alone.values) for each in two_ranks(trained))


def test_a_rank_without_rows_takes_part() -> None:
    config, rows = agent_config(*GAMES), games(3)
    found = two_ranks(
        lambda rank, add: AgentBaselines(config).of_tokens(
            rows[:0] if rank else rows, np.arange(0 if rank else 3), 3, add
        )
    )
    assert found[1].shape == (0, 4, 1)
    assert torch.equal(found[0], AgentBaselines(config).of_tokens(rows, np.arange(3), 3, one_rank))


def test_a_resumed_trainer_goes_on_with_the_same_baselines_and_weights(tmp_path: Path) -> None:
    run = InProcessRun(agent_words(*GAMES))
    run.warm_start()
    metrics = run.iterate(1)
    assert metrics["advantage/abs_mean"] > 0
    baseline = {name: metrics[f"advantage/baseline_{name}"] for name in ("first", "second")}
    assert baseline["first"] < 0 == baseline["second"], "an untrained first player breaks the rules at once"
    run.trainer.save(str(tmp_path / "1"))
    second, weights = run.iterate(2), run.trainer.weights()

    run.trainer.load(str(tmp_path / "1"))
    assert run.trainer._baselines is not None and run.trainer._baselines.by_name() == baseline
    run._publish(1)
    again = run.iterate(2)
    assert again["advantage/baseline_first"] == second["advantage/baseline_first"] != baseline["first"]
    assert all(np.array_equal(each, weights[name]) for name, each in run.trainer.weights().items())
    run.rollout.close()
    run.trainer.close()


def test_a_workflow_without_outcomes_of_agents_is_named() -> None:
    rows = games(2)
    rows["agents_rewarded"] = torch.tensor([True, False])
    worker = type("Worker", (), {"config": agent_config(*GAMES)})
    with pytest.raises(ValueError, match=r"^algorithm.advantage=rae: episode 10 has no agent_rewards; the workflow"):
        tasks.compute_agent_baseline(rows, worker=worker, call=None)  # type: ignore[arg-type]
