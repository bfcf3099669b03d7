"""What every rollout engine does: an engine in ``small_engines.JOBS`` must pass these tests as they are."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from conformance import differences
from node_calls import call_of
from small_engines import JOBS, TWO_WORKERS, Job, build_rollout, connected_trainer, published

import tasks
from embodyflow.data.batches import to_batch
from embodyflow.data.metrics import Metric, as_metrics, to_floats
from embodyflow.data.tables import digest_of
from embodyflow.nodes.engines import ResponseJudge
from embodyflow.types import Batch

ALL_ROWS = {"uid", "group_id", "policy_version", "seed", "action_tokens", "log_probs", "loss_mask", "num_steps"}


class Built(NamedTuple):
    """An engine that has weights of version 3, and how it came to be."""

    job: Job
    engine: Any
    weights: dict[str, np.ndarray]


@pytest.fixture(scope="module", params=JOBS)
def built(request: pytest.FixtureRequest) -> Iterator[Built]:
    job = JOBS[request.param]
    with connected_trainer(job.config()) as trainer:
        weights = published(trainer)
    engine = build_rollout(job.config())
    engine.update_weights(weights, 3)
    yield Built(job, engine, weights)
    engine.close()


def test_it_has_the_methods_of_its_protocol(built: Built) -> None:
    assert differences(built.job.protocol, built.engine) == []
    assert (built.engine.config, built.engine.rank, built.engine.world_size) == (built.job.config(), 0, 1)


def test_rows_have_the_columns_of_all_rows_and_the_version_that_acted(built: Built) -> None:
    rows = built.job.gather(built.engine, 1)
    assert rows.keys() >= ALL_ROWS
    assert {len(column) for column in rows.values()} == {len(rows["uid"])}
    assert len(set(rows["uid"].tolist())) == len(rows["uid"]) > 0
    assert set(rows["policy_version"].tolist()) == {3}


def test_an_iteration_that_is_repeated_gives_the_same_rows(built: Built) -> None:
    first, again = (built.job.gather(built.engine, 1) for _ in range(2))
    assert digest_of(first) == digest_of(again)
    assert digest_of(built.job.gather(built.engine, 2)) != digest_of(first)


def test_faults_are_counted_from_the_last_call_on(built: Built) -> None:
    built.engine.fault_metrics()
    counts = built.engine.fault_metrics()
    assert all(isinstance(metric, Metric) and metric.value == 0 for metric in counts.values())


def test_two_ranks_share_an_iteration(built: Built) -> None:
    engines = [build_rollout(built.job.config(TWO_WORKERS), rank, 2) for rank in (0, 1)]
    uids = []
    for engine in engines:
        engine.update_weights(built.weights, 3)
        uids.append(set(built.job.gather(engine, 1)["uid"].tolist()))
        engine.close()
    assert uids[0] and uids[1] and not uids[0] & uids[1]


@pytest.mark.parametrize("built", ["embodied", "language"], indirect=True)
def test_an_engine_of_episodes_plays_further_rounds_and_an_evaluation(built: Built) -> None:
    engine = built.engine
    first, further = (engine.training_episodes(0, 1, reroll) for reroll in (0, 1))
    assert len(first) == len(further) == built.job.config().rows_per_iteration
    assert not {each.uid for each in first} & {each.uid for each in further}
    for mode in ("greedy", "sampled"):
        assert engine.evaluation_episodes(mode)
    greedy = [engine.play(engine.evaluation_episodes()[:1], "eval", None) for _ in range(2)]
    assert digest_of(greedy[0]) == digest_of(greedy[1])
    assert torch.equal(engine.all_reduce(torch.ones(2)), torch.ones(2))


@pytest.mark.parametrize("built", ["embodied", "language"], indirect=True)
def test_the_baseline_of_a_group_is_the_reward_of_its_greedy_row(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = built.engine
    rows = to_batch(built.job.gather(engine, 1))
    shuffled = rows[torch.tensor([3, 0, 2, 1])]
    begun = [name for name in ("prompt_id", "env_task_id", "goal") if name in set(rows.keys())]
    greedy = to_batch(engine.play(engine.first_of_groups(shuffled), "train", None))
    for group in rows["group_id"].unique():
        [mine], siblings = greedy[greedy["group_id"] == group], rows[rows["group_id"] == group]
        assert all((siblings[name] == mine[name]).all() for name in begun) and len(siblings) == 2

    def longest(batch: Batch, worker: object) -> tuple[Batch, dict[str, Metric]]:
        """Reward the number of tokens, since neither model succeeds."""
        batch["rewards"] = batch["loss_mask"].float() * (1 + batch["group_id"][:, None, None])
        return batch, {}

    monkeypatch.setattr("tasks.rewards.reward", longest)
    output = tasks.compute_baseline(shuffled.clone(), worker=engine, call=call_of("baseline"))
    assert output.batch is not None and to_floats(as_metrics(output.metrics))["baseline/num_rows"] == 2
    rewards = {int(row["group_id"]): longest(row[None], engine)[0]["rewards"].sum().item() for row in greedy}
    assert len(set(rewards.values())) == 2
    assert output.batch["baseline"].tolist() == [rewards[group] for group in shuffled["group_id"].tolist()]
    assert set(output.batch.keys()) == {*rows.keys(), "baseline"}
    assert all(torch.equal(output.batch[name], shuffled[name]) for name in set(rows.keys()))


def test_rows_without_success_come_from_an_engine_that_judges_them(built: Built) -> None:
    assert isinstance(built.engine, ResponseJudge) == (built.job is JOBS["language"])
