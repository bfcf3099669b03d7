"""Groups without variance are replaced by others until there are enough, or the error says what to change."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from node_calls import call_of

import tasks
from embodyflow.config import RunConfig
from embodyflow.data.batches import Columns, to_batch
from embodyflow.data.metrics import as_metrics, to_floats
from embodyflow.errors import DamageError, SamplingError

CALL = call_of("dynamic_sampling")
MIXED, FAILED, SOLVED = (1, 0), (0, 0), (1, 1)


class Rollout:
    """Plays rounds of two groups of two episodes with given outcomes."""

    def __init__(
        self, config: RunConfig, rounds: Sequence[Sequence[tuple[int, int]]], world_size: int = 1, rank: int = 0
    ) -> None:
        self.config, self.world_size, self.rank, self.asked = config, world_size, rank, list[Any]()
        self.policy_version = 0
        self._rounds = rounds

    def training_episodes(self, seed: int, iteration: int, reroll: int) -> int:
        self.asked.append((seed, iteration, reroll))
        return reroll

    def play(self, episodes: int, split: str, draws: tuple[int | str, ...], journal: None) -> Columns:
        self.asked.append((split, draws))
        return self.round(episodes)

    def fault_metrics(self) -> dict[str, Any]:
        return {}

    def round(self, index: int) -> Columns:
        success = np.array(self._rounds[index], bool).flatten()
        numbers = np.arange(len(success)) + 10 * index
        return {
            "uid": numbers,
            "group_id": numbers // 2,
            "policy_version": np.full(len(success), self.policy_version),
            "success": success,
            "truncated": ~success,
            "num_steps": np.full(len(success), 5),
            "episode_return": success.astype(np.float32),
        }


def sample(worker: Rollout) -> tuple[list[int], dict[str, float]]:
    output = tasks.dynamic_sampling(to_batch(worker.round(0)), worker=worker, call=CALL)
    assert output.batch is not None
    return output.batch["uid"].tolist(), to_floats(as_metrics(output.metrics))


def sample_kept(
    config: RunConfig, folder: Path, iteration: int, rounds: list[list[tuple[int, int]]]
) -> tuple[list[int], dict[str, float]]:
    """Sample in an iteration whose rows are kept on disk; the first uid is 100 × the iteration."""
    worker = Rollout(config, rounds)
    worker.policy_version = iteration - 1
    first = to_batch(worker.round(0))
    for name in ("uid", "group_id"):
        first[name] += 100 * iteration
    call = call_of(
        "dynamic_sampling",
        iteration=iteration,
        policy_version=iteration - 1,
        stage=str(folder / str(iteration)),
        next_stage=str(folder / str(iteration + 1)),
    )
    output = tasks.dynamic_sampling(first, worker=worker, call=call)
    assert output.batch is not None and len(worker.asked) == 2 * (len(rounds) - 1)
    return output.batch["uid"].tolist(), to_floats(as_metrics(output.metrics))


def test_surplus_rows_save_the_next_iteration_a_round(tiny_config, tmp_path: Path) -> None:
    config = tiny_config()
    uids, metrics = sample_kept(config, tmp_path, 1, [[FAILED, MIXED], [MIXED, MIXED]])
    assert uids == [102, 103, 10, 11] and metrics["surplus/num_waiting"] == 2
    for _ in range(2):  # a repeated iteration finds the same rows
        uids, metrics = sample_kept(config, tmp_path, 2, [[FAILED, MIXED]])
        assert uids == [202, 203, 12, 13]
        assert (metrics["surplus/num_used"], metrics["surplus/num_waiting"]) == (2, 0)
        assert metrics["groups/num_kept_rows"] == 4 and metrics["groups/num_dropped"] == 1


def test_fresh_groups_go_first_and_those_that_became_too_stale_are_counted(tiny_config, tmp_path: Path) -> None:
    config = tiny_config()
    sample_kept(config, tmp_path, 1, [[FAILED, MIXED], [MIXED, MIXED]])
    uids, metrics = sample_kept(config, tmp_path, 2, [[MIXED, MIXED]])
    assert uids == [200, 201, 202, 203]
    assert [metrics[f"surplus/num_{what}"] for what in ("used", "waiting", "expired")] == [0, 2, 0]
    _, metrics = sample_kept(config, tmp_path, 3, [[FAILED, MIXED], [MIXED, MIXED]])
    assert [metrics[f"surplus/num_{what}"] for what in ("used", "waiting", "expired")] == [0, 2, 2]


@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_damaged_or_missing_surplus_rows_are_an_error(tiny_config, tmp_path: Path, damage: str) -> None:
    sample_kept(tiny_config(), tmp_path, 1, [[FAILED, MIXED], [MIXED, MIXED]])
    [path] = tmp_path.glob("2/*.surplus")
    if damage == "gone":
        path.unlink()
    else:
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    with pytest.raises(DamageError, match=r"iteration 1 left over .* remove checkpoints/iteration-000001 "):
        sample_kept(tiny_config(), tmp_path, 2, [[FAILED, MIXED]])


def test_nothing_waits_for_a_policy_that_may_not_be_stale(tiny_config, tmp_path: Path) -> None:
    config = tiny_config("filter.max_staleness=0")
    sample_kept(config, tmp_path, 1, [[FAILED, MIXED], [MIXED, MIXED]])
    uids, metrics = sample_kept(config, tmp_path, 2, [[FAILED, MIXED], [MIXED, FAILED]])
    assert uids == [202, 203, 10, 11] and metrics["surplus/num_expired"] == 2


def test_nothing_is_played_where_every_group_is_mixed(tiny_config) -> None:
    worker = Rollout(tiny_config(), [[MIXED, MIXED]])
    uids, metrics = sample(worker)
    assert uids == [0, 1, 2, 3] and worker.asked == []
    assert (metrics["groups/num_dropped"], metrics["groups/num_rerolled"]) == (0, 0)


def test_dropped_groups_are_replaced_and_surplus_groups_left_out(tiny_config) -> None:
    worker = Rollout(tiny_config(), [[SOLVED, MIXED], [FAILED, FAILED], [MIXED, MIXED]])
    uids, metrics = sample(worker)
    assert uids == [2, 3, 20, 21]
    draws = ("train", (7, 4, "dynamic_sampling"))
    assert worker.asked == [(7, 4, 1), draws, (7, 4, 2), draws]
    assert metrics.pop("groups/mixed_fraction") == pytest.approx(3 / 6)
    assert metrics.pop("groups/all_success_fraction") == pytest.approx(1 / 6)
    assert metrics.pop("groups/all_failure_fraction") == pytest.approx(2 / 6)
    assert metrics == {
        "groups/num_dropped": 3,
        "groups/num_kept_rows": 4,
        "groups/num_rerolled": 4,
        "rollout/episode_steps": 5,  # of the new rounds; the first was counted when it was played
        "rollout/num_episodes": 8,
        "rollout/num_steps": 40,
        "rollout/reward": 0.25,
        "rollout/success_rate": 0.25,
        "surplus/num_expired": 0,
        "surplus/num_used": 0,
        "surplus/num_waiting": 0,  # without a folder no rows wait
    }


def test_a_rank_fills_its_share_of_the_wanted_groups(tiny_config) -> None:
    two_workers = ("rollout.num_workers=2", "rollout.num_groups=4", "filter.num_groups=2")
    uids, _ = sample(Rollout(tiny_config(*two_workers), [[FAILED, MIXED]], world_size=2))
    assert uids == [2, 3]


@pytest.mark.parametrize(("rank", "kept"), [(0, [2, 3]), (1, [2, 3, 4, 5])])
def test_shares_of_the_wanted_groups_may_be_uneven(tiny_config, rank: int, kept: list[int]) -> None:
    words = ("rollout.num_workers=2", "rollout.num_groups=4", "filter.num_groups=3")
    uids, _ = sample(Rollout(tiny_config(*words), [[FAILED, MIXED], [MIXED]], rank=rank, world_size=2))
    assert len(uids) == len(kept)


def test_a_policy_that_never_fails_continues_without_rows(tiny_config) -> None:
    worker = Rollout(tiny_config("filter.max_rerolls=2"), [[SOLVED, SOLVED]] * 3)
    uids, metrics = sample(worker)
    assert uids == [] and len(worker.asked) == 2 * 2
    assert metrics["groups/num_kept_rows"] == 0 and metrics["groups/all_success_fraction"] == 1


@pytest.mark.parametrize(
    ("outcome", "rate", "cause"), [(SOLVED, "93%", "hardly ever fails"), (FAILED, "7%", "hardly ever succeeds")]
)
def test_a_batch_that_stays_short_is_an_error_with_advice(
    tiny_config, outcome: tuple[int, int], rate: str, cause: str
) -> None:
    rounds = [[outcome, outcome], [MIXED, outcome], [outcome, outcome], [outcome]]
    worker = Rollout(tiny_config("filter.max_rerolls=3"), rounds)
    with pytest.raises(SamplingError) as caught:
        sample(worker)
    message = str(caught.value)
    assert "2 of 4 rows are kept by filter after filter.max_rerolls=3 rounds" in message
    assert f"{rate} of 14 episodes succeeded" in message and cause in message
    assert "Lower filter.num_groups" in message and "rollout.temperature" in message
