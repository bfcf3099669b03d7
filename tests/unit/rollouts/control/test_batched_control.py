"""Control rollouts in a natively batched environment: the rows of single ones, and no row of an automatic reset."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from off_policy_runs import SMALL

from embodyflow.config.composition.compose import compose_config
from embodyflow.data.tables import Table, digest_of
from embodyflow.rollouts.control_rollout import ControlRollout
from embodyflow.rollouts.transition_rollout import TransitionRollout

POINTS = "env.id=point_masses:tests/Points-v0"
SIZES = ("policy.state_dim=null", "policy.action_dim=null")
WORDS = ("experiment=reacher", POINTS, *SIZES, "env.max_steps=12", "rollout.envs_per_worker=3", "rollout.num_steps=30")
ENTRY_POINT = "env.vector.mode=entry_point"
AUTOMATIC = (ENTRY_POINT, "env.vector.resets=automatic")


def collected(
    *words: str, engine: Any = ControlRollout, iterations: int = 2, folder: Path | None = None
) -> list[Table]:
    """Return the rows of the first iterations."""
    config: Any = compose_config(words)
    torch.manual_seed(0)
    rollout = engine(config, 0, 1)
    try:
        return [dict(rollout.collect(i, (0, i, "rollout"), folder)[0]) for i in range(1, iterations + 1)]
    finally:
        rollout.close()


def autoreset(mode: str) -> str:
    return f"+env.kwargs.autoreset={mode}"


@pytest.fixture(scope="module")
def single() -> list[str]:
    return [digest_of(rows) for rows in collected(*WORDS)]


@pytest.mark.parametrize(
    "words",
    [
        (ENTRY_POINT, autoreset("Disabled")),
        (ENTRY_POINT, autoreset("NextStep")),
        (ENTRY_POINT, autoreset("SameStep")),
        ("env.vector.mode=sync",),
        ("env.vector.mode=sync", "env.vector.autoreset=SameStep"),
        ("env.vector.mode=sync", "env.vector.autoreset=Disabled"),
    ],
)
def test_seeded_rows_are_those_of_single_environments(words: tuple[str, ...], single: list[str]) -> None:
    assert [digest_of(rows) for rows in collected(*WORDS, *words)] == single


def test_rows_of_transitions_are_those_of_single_environments() -> None:
    words = [*dict.fromkeys([*SMALL, POINTS, *SIZES])]
    expected = collected(*words, engine=TransitionRollout)
    for mode in ("NextStep", "SameStep"):
        found = collected(*words, ENTRY_POINT, autoreset(mode), engine=TransitionRollout)
        assert list(map(digest_of, found)) == list(map(digest_of, expected))
    rows = expected[0]
    assert (rows["terminated"] | rows["truncated"]).any()


def episodes_of(iterations: list[Table]) -> list[list[tuple[np.ndarray, np.ndarray, np.ndarray]]]:
    """Return states, actions and final state of each piece, lane by lane."""
    found: list[list[Any]] = [[], [], []]
    for rows in iterations:
        for row in np.argsort(rows["uid"]):
            lane = (int(rows["uid"][row]) % 90) // 30
            steps = int(rows["num_steps"][row])
            piece = rows["state"][row, :steps], rows["action_tokens"][row, :steps], rows["final_state"][row]
            found[lane].append(piece)
    return found


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_no_row_has_the_step_that_only_resets(mode: str) -> None:
    """The points' speed in a row follows from their actions; an ignored action in it would break that."""
    iterations = collected(*WORDS, *AUTOMATIC, autoreset(mode), iterations=3)
    for pieces in episodes_of(iterations):
        for states, actions, final in pieces:
            after = np.concatenate([states[1:], final[None]])
            forces = np.clip(actions[:, 0], -1, 1)
            np.testing.assert_allclose(after[:, 1], 0.5 * states[:, 1] + 0.2 * forces, atol=1e-6)
            np.testing.assert_allclose(after[:, 0], states[:, 0] + after[:, 1], atol=1e-6)
    steps = [int(rows["num_steps"].sum()) for rows in iterations]
    ends = sum(len(pieces) for pieces in episodes_of(iterations))
    assert ends > 12 and (max(steps) < 90 if mode == "NextStep" else steps == [90] * 3)
    assert all(rows["loss_mask"].sum() == rows["num_steps"].sum() for rows in iterations)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_another_worker_continues_a_batch_that_resets_itself(mode: str, tmp_path: Path) -> None:
    """After 4 iterations of 30 steps the batch is reset as a whole: 10 episodes of 12 steps are over."""
    words = (*WORDS, *AUTOMATIC, autoreset(mode))
    expected = collected(*words, iterations=6, folder=tmp_path)
    config: Any = compose_config(words)
    for iteration in (6, 5, 4):
        torch.manual_seed(0)
        rollout = ControlRollout(config, 0, 1)
        rows, _ = rollout.collect(iteration, (0, iteration, "rollout"), tmp_path)
        rollout.close()
        assert digest_of(dict(rows)) == digest_of(expected[iteration - 1])
    starts = {rows["state"][0, 0].tobytes() for rows in (expected[0], expected[4])}
    assert len(starts) == 2, "each batch of episodes begins otherwise"


def test_evaluations_are_those_of_single_environments() -> None:
    found = []
    for words in ((), (ENTRY_POINT,), (ENTRY_POINT, autoreset("SameStep")), ("env.vector.mode=sync",)):
        config: Any = compose_config([*WORDS, "evaluation={num_episodes: 5}", *words])
        torch.manual_seed(0)
        rollout = ControlRollout(config, 0, 1)
        found.append(rollout.evaluate(range(5)))
        rollout.close()
    assert found[1:] == [found[0]] * 3 and len(set(found[0].returns)) == 5


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_an_evaluation_in_a_batch_that_resets_itself_does_not_depend_on_the_one_before(mode: str) -> None:
    config: Any = compose_config([*WORDS, "evaluation={num_episodes: 5}", *AUTOMATIC, autoreset(mode)])
    torch.manual_seed(0)
    rollout = ControlRollout(config, 0, 1)
    whole, part = rollout.evaluate(range(5)), rollout.evaluate(range(3, 5))
    rollout.close()
    assert part.returns == whole.returns[3:] and len(set(whole.returns)) == 5
