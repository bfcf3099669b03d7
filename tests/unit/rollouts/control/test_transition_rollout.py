"""Rollouts for off-policy training, step by step."""

from typing import Any

import numpy as np
import pytest
from off_policy_runs import SMALL

from embodyflow.config.composition.compose import compose_config
from embodyflow.rollouts.transition_rollout import TransitionRollout


def rollouts(*words: str) -> list[TransitionRollout]:
    chosen = {word.partition("=")[0]: word for word in (*SMALL, *words)}
    config: Any = compose_config(list(chosen.values()))
    return [TransitionRollout(config, rank, config.rollout.num_workers) for rank in range(config.rollout.num_workers)]


def collect(engines: list[TransitionRollout], iteration: int) -> dict[str, np.ndarray]:
    """Return the rows of all ranks in the order of the replay buffer."""
    parts = [engine.collect(iteration, (0, iteration, "rollout"))[0] for engine in engines]
    rows = {name: np.concatenate([np.asarray(part[name]) for part in parts]) for name in parts[0]}
    return {name: column[np.argsort(rows["uid"])] for name, column in rows.items()}


def test_a_step_is_followed_by_that_of_the_same_environment_in_the_next_round() -> None:
    engines = rollouts("rollout.num_workers=2")
    first, second = collect(engines, 1), collect(engines, 2)
    rows = {name: np.concatenate([first[name], second[name]]) for name in first}
    for engine in engines:
        engine.close()
    assert rows["uid"].tolist() == list(range(32, 96))  # 4 environments, 8 steps, iterations 1 and 2
    over = rows["terminated"] | rows["truncated"]
    assert over.reshape(16, 4)[:, 0].nonzero()[0].tolist() == [4, 9, 14], "every episode has 5 steps"
    goes_on = ~over[:-4]
    np.testing.assert_array_equal(rows["final_state"][:-4][goes_on], rows["state"][4:][goes_on])
    assert (rows["final_state"][:-4][~goes_on] != rows["state"][4:][~goes_on]).all()
    assert not rows["terminated"].any(), "the time limit only cuts these episodes"


def test_the_environment_gets_actions_stretched_to_its_bounds() -> None:
    engines = rollouts()
    rows = collect(engines, 1)
    engines[0].close()
    actions, shown = rows["action_tokens"][:, 0], rows["state"][:, 0]
    np.testing.assert_allclose(rows["rewards"], -np.abs(2 * actions - 2 * shown), atol=1e-5)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_the_first_transitions_have_uniform_actions(num_workers: int) -> None:
    """20 random transitions: with 2 environments the first 10 rounds, with 4 the first 5."""
    engines = rollouts(f"rollout.num_workers={num_workers}", "off_policy.random_transitions=20")
    for engine in engines:
        engine.policy.act = lambda *args: pytest.fail("the policy was asked")
    num_random, states = 10 // num_workers, np.zeros((2, 1), np.float32)
    deciding = [engine._decisions(np.full((num_random + 1, 2, 1), 0.75), 0) for engine in engines]
    rows = [decide(t, states) for decide in deciding for t in range(num_random)]
    assert all((row.actions == 0.5).all() and row.actions.shape == (2, 1, 1) for row in rows)
    np.testing.assert_allclose(rows[0].log_probs, np.log(0.5), rtol=1e-6)
    with pytest.raises(pytest.fail.Exception, match="the policy was asked"):
        deciding[0](num_random, states)
    later = engines[0]._decisions(np.full((1, 2, 1), 0.75), num_random)
    with pytest.raises(pytest.fail.Exception, match="the policy was asked"):
        later(0, states)
    for engine in engines:
        engine.close()
