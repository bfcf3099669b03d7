"""Responses that go on with newer weights: whose log-probs they have, and that a lost worker changes none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from language_jobs import checkpoints_of, connected_trainer, language_config
from node_calls import call_of

import tasks
from embodyflow.data.batches import Columns, to_batch
from embodyflow.data.rows_file import Journal
from embodyflow.data.segment import Segment
from embodyflow.errors import InfrastructureError
from embodyflow.rollouts.language.language_rollout import LanguageRollout
from embodyflow.training.language_trainer import LanguageTrainer

VERSIONS = range(7)
EVERY = 4
DRAWS = (0, 8, "rollout")
CONFIG = language_config(
    *(f"rollout.max_staleness={len(VERSIONS) - 1}", f"rollout.interrupt.every={EVERY}", "rollout.groups_per_call=1"),
    *("algorithm.old_log_probs=proximal", "trainer.learning_rate=0.01"),
)
Weights = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def trainer() -> Iterator[LanguageTrainer]:
    with connected_trainer(CONFIG) as trainer:
        yield trainer


@pytest.fixture(scope="module")
def checkpoints(trainer: LanguageTrainer, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return checkpoints_of(CONFIG, trainer, len(VERSIONS), tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="module")
def weights(trainer: LanguageTrainer, checkpoints: list[Path]) -> list[Weights]:
    def loaded(folder: Path) -> Weights:
        trainer.load(str(folder))
        return {name: array.copy() for name, array in (trainer.weights() | trainer.probe()).items()}

    return [loaded(folder) for folder in checkpoints]


@pytest.fixture
def rollout() -> Iterator[LanguageRollout]:
    rollout = LanguageRollout(CONFIG, 0, 1)
    yield rollout
    rollout.close()


def journal(folder: Path, segment: int) -> Journal:
    return Journal(folder / f"0.{segment}.parts")


def sample(rollout: LanguageRollout, version: int, weights: Weights, folder: Path) -> tuple[Columns, int]:
    """Sample the segment of iteration 7 that a version samples."""
    rollout.update_weights(weights, version)
    before = journal(folder, version - 1) if version else None
    segment = Segment(version, is_last=version == VERSIONS[-1])
    questions = rollout.training_episodes(0, 7)
    return rollout.play_segment(questions, DRAWS, segment, (before, journal(folder, version)))


def whole(rollout: LanguageRollout, weights: list[Weights], folder: Path) -> Columns:
    for version in VERSIONS:
        rows, _ = sample(rollout, version, weights[version], folder)
    return rows


def test_each_token_has_the_log_prob_of_the_version_that_sampled_it(
    rollout: LanguageRollout, weights: list[Weights], trainer: LanguageTrainer, checkpoints: list[Path], tmp_path: Path
) -> None:
    rows = to_batch(whole(rollout, weights, tmp_path))
    mask, versions = rows["loss_mask"], rows["token_version"]
    expected = torch.arange(mask.shape[1]).div(EVERY, rounding_mode="floor").clamp(max=VERSIONS[-1])[None, :, None]
    assert torch.equal(versions, (expected * mask).int()) and versions.dtype == torch.int32
    assert versions.amax() >= 6, "no response has six swaps"
    assert rows["policy_version"].eq(0).all()
    for version, folder in enumerate(checkpoints):
        trainer.load(str(folder))
        own = mask & (versions == version)
        gaps = (trainer.log_probs(rows, reference=False) - rows["log_probs"]).abs()
        assert gaps[own].max() < 1e-5
        assert gaps[mask & ~own].max() > 1e-2, "the versions are too similar for the test to prove anything"


def test_swaps_between_equal_weights_change_no_token(
    rollout: LanguageRollout, weights: list[Weights], tmp_path: Path
) -> None:
    rollout.update_weights(weights[0], 0)
    plain = rollout.play(rollout.training_episodes(0, 7), "train", DRAWS)
    rows = whole(rollout, [weights[0] for _ in VERSIONS], tmp_path)
    for name in plain.keys() - {"log_probs"}:
        assert np.array_equal(rows[name], plain[name]), name
    np.testing.assert_allclose(rows["log_probs"], plain["log_probs"], atol=1e-5)


def test_a_new_worker_goes_on_where_the_lost_one_ended(
    rollout: LanguageRollout, weights: list[Weights], tmp_path: Path
) -> None:
    expected = whole(rollout, weights, tmp_path / "undisturbed")
    lost, folder = LanguageRollout(CONFIG, 0, 1), tmp_path / "disturbed"
    for version in range(3):
        sample(lost, version, weights[version], folder)
    continue_call, calls = lost._continue, list[int]()

    def continue_and_die(responses, segment):
        calls.append(segment.index)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return continue_call(responses, segment)

    lost._continue = continue_and_die  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        sample(lost, 3, weights[3], folder)
    lost.close()
    new = LanguageRollout(CONFIG, 0, 1)
    for version in VERSIONS[3:]:
        rows, num_tokens = sample(new, version, weights[version], folder)
        assert num_tokens <= 2 * EVERY if version == 3 else num_tokens > 0  # one of the two calls is in the journal
    new.close()
    assert rows.keys() == expected.keys() and all(np.array_equal(rows[name], expected[name]) for name in expected)


def test_rows_of_the_segment_before_that_are_gone_are_a_failure_of_infrastructure(
    rollout: LanguageRollout, weights: list[Weights], tmp_path: Path
) -> None:
    with pytest.raises(InfrastructureError, match="segment 3: the rows of the segment before are gone"):
        sample(rollout, 3, weights[3], tmp_path)


def test_the_node_passes_rows_on_after_the_last_segment(
    rollout: LanguageRollout, weights: list[Weights], tmp_path: Path
) -> None:
    stage = str(tmp_path / "stages" / "7" / "rollout")
    outputs = []
    for version in VERSIONS:
        rollout.update_weights(weights[version], version)
        segment = Segment(version, is_last=version == VERSIONS[-1])
        call = call_of("rollout", iteration=7, stage=stage, segment=segment, policy_version=version)
        outputs.append(tasks.generate(None, worker=rollout, call=call))
    assert [output.batch is None for output in outputs] == [True] * 6 + [False]
    last = outputs[-1].batch
    assert last is not None and "token_version" in set(last.keys())
    assert outputs[-1].metrics["rollout/num_steps"].value == int(last["response_length"].sum())
    assert all(output.metrics["perf/env_steps_per_second"].value > 0 for output in outputs[:6])


def test_an_engine_without_segments_is_named() -> None:
    class Engine:
        """Plays whole rows only."""

        play: Callable[..., Columns]

    with pytest.raises(TypeError, match=r"^Engine has no method play_segment"):
        tasks.generate(None, worker=Engine(), call=call_of("rollout", segment=Segment(0, is_last=False)))
