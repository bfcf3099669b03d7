"""The node of the success classifier: what it may see, what it keeps, and that a repeated call is the same."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from node_calls import call_of

import tasks
from embodyflow.data.metrics import as_metrics, to_floats
from embodyflow.data.plans.row_plan import RankInput, ShardRef, Slice
from embodyflow.errors import DamageError, RewardError
from embodyflow.record.episodes.labelled_episodes import LABELLED
from embodyflow.rewards.progress.success_classifier import draw_labelled
from embodyflow.types import Batch, NodeOutput

ROWS, NODE = 20, "classifier"
OVERRIDES = ("algorithm=success_classifier", "classifier.labelled_share=0.3", "classifier.steps=40")


def episodes(seed: int = 0) -> Batch:
    random = np.random.default_rng(seed)
    final = random.standard_normal((ROWS, 30)).astype(np.float32)
    columns = {
        "uid": torch.arange(100, 100 + ROWS),
        "env_task_id": torch.zeros(ROWS, dtype=torch.int64),
        "success": torch.from_numpy(final[:, 21] > 0),
        "loss_mask": torch.ones(ROWS, 2, 3, dtype=torch.bool),
        "state": torch.from_numpy(random.standard_normal((ROWS, 2, 30)).astype(np.float32)),
        "final_state": torch.from_numpy(final),
    }
    return Batch(columns, batch_size=[ROWS])


@pytest.fixture
def config(tiny_config, monkeypatch):
    demo = {"state": np.full((4, 30), 1.5, np.float32), "actions": np.zeros((4, 4), np.float32)}
    demo |= {"num_steps": np.array(3), "uid": np.array(1), "env_task_id": np.array(0)}
    monkeypatch.setattr("embodyflow.rollouts.embodied.demonstrators.all_demonstrations", lambda run: [demo, demo])
    return tiny_config(*OVERRIDES)


def classify(config, folder: Path, batch: Batch, iteration: int = 1) -> NodeOutput:
    parent = RankInput((Slice(ShardRef("1/rollout/0", "here", ROWS), 0, ROWS),), offset=0, total_rows=ROWS)
    call = call_of(NODE, iteration=iteration, run_folder=str(folder))
    call = type(call)(call.work, call.seed, (parent,))
    worker = SimpleNamespace(config=config, rank=0, all_reduce=lambda tensor: tensor)
    return tasks.classify_success(batch, worker=worker, call=call)


def test_labelled_episodes_are_rewarded_by_their_success_and_kept(config, tmp_path: Path) -> None:
    batch = episodes()
    output = classify(config, tmp_path, batch)
    labelled = draw_labelled(ROWS, 0.3, (7, 1, NODE))
    scores, success = output.batch["scores"].numpy(), batch["success"].numpy()
    assert (scores[labelled] == success[labelled]).all()
    assert ((scores[~labelled] > 0) & (scores[~labelled] < 1)).all()
    metrics = to_floats(as_metrics(output.metrics))
    assert metrics["classifier/labelled_share"] == 0.3 and metrics["classifier/one_outcome"] == 0.0
    assert metrics["classifier/num_examples"] == 6 + 2, "the demonstrations count"
    later = to_floats(as_metrics(classify(config, tmp_path, episodes(1), iteration=2).metrics))
    assert later["classifier/num_examples"] == 12 + 2


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flips=st.lists(st.booleans(), min_size=ROWS, max_size=ROWS))
def test_hidden_outcomes_change_neither_rewards_nor_what_is_kept(config, tmp_path_factory, flips: list[bool]) -> None:
    hidden = torch.from_numpy(~draw_labelled(ROWS, 0.3, (7, 1, NODE)))
    results = []
    for flip in (torch.zeros(ROWS, dtype=torch.bool), torch.tensor(flips)):
        batch, folder = episodes(), tmp_path_factory.mktemp("run")
        batch["success"] = batch["success"] ^ (flip & hidden)
        output = classify(config, folder, batch)
        kept = {path.name: path.read_bytes() for path in (folder / LABELLED).iterdir()}
        results.append((output.batch["scores"].tolist(), kept, output.metrics["classifier/loss"]))
    assert results[0] == results[1]


def test_revealed_outcomes_change_the_rewards_of_others(config, tmp_path: Path) -> None:
    labelled = torch.from_numpy(draw_labelled(ROWS, 0.3, (7, 1, NODE)))
    batch, flipped = episodes(), episodes()
    flipped["success"] = flipped["success"] ^ labelled
    scores = [classify(config, tmp_path, each).batch["scores"][~labelled] for each in (batch, flipped)]
    assert not torch.equal(*scores)


def test_an_iteration_that_repeats_after_a_kill_makes_the_same_rewards(config, tmp_path: Path) -> None:
    batches = [episodes(seed) for seed in (0, 1, 2)]
    first = [classify(config, tmp_path, batch, index) for index, batch in enumerate(batches, 1)]
    # A kill after the third iteration's node, with the commit of the first: the files of later iterations are there.
    again = [classify(config, tmp_path, batch, index) for index, batch in enumerate(batches, 1) if index > 1]
    for before, after in zip(first[1:], again, strict=True):
        assert torch.equal(before.batch["scores"], after.batch["scores"])
        assert before.metrics == after.metrics


@pytest.mark.parametrize("outcome", [True, False])
@pytest.mark.parametrize("threshold", ["null", "0.5"])
def test_labels_of_one_outcome_reward_no_episode_above_another(
    outcome, threshold, tiny_config, monkeypatch, tmp_path: Path, caplog
) -> None:
    config = tiny_config(*OVERRIDES, f"classifier.threshold={threshold}", "warm_start=null")
    batch = episodes()
    batch["success"] = torch.from_numpy(draw_labelled(ROWS, 0.3, (7, 1, NODE)) == outcome)
    output = classify(config, tmp_path, batch)
    assert output.batch["scores"].tolist() == [float(outcome)] * ROWS
    assert to_floats(as_metrics(output.metrics))["classifier/one_outcome"] == 1.0
    assert f"every label so far is a {'success' if outcome else 'failure'}" in caplog.text


def test_missing_labelled_episodes_are_an_error(config, tmp_path: Path) -> None:
    classify(config, tmp_path, episodes())
    (tmp_path / LABELLED / "iteration-000001").write_bytes(b"half a")
    with pytest.raises(DamageError, match=r"iteration-000001 is missing or damaged"):
        classify(config, tmp_path, episodes(1), iteration=2)


def test_an_embedding_that_is_not_finite_is_an_error(config, tmp_path: Path) -> None:
    batch = episodes()
    batch["final_state"][3] = torch.nan
    with pytest.raises(RewardError, match="103"):
        classify(config, tmp_path, batch)
