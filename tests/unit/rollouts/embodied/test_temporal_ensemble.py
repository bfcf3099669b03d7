"""Evaluations that execute the mean of what overlapping chunks plan for a step."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from node_calls import call_of

import tasks
from embodyflow.config import RunConfig
from embodyflow.data.batches import Columns
from embodyflow.data.rows_file import Journal
from embodyflow.data.tables import digest_of
from embodyflow.errors import ConfigError
from embodyflow.policies.observations import entries_of
from embodyflow.rollouts.embodied.embodied_rollout import SMALLEST_BATCH, EmbodiedRollout
from embodyflow.rollouts.embodied.episode_rows import padded
from embodyflow.rollouts.embodied.temporal_ensemble import TemporalEnsemble
from embodyflow.rollouts.replay import first_difference
from embodyflow.simulation.make_env import make_env

COEFFICIENT = 0.3
WORDS = (f"evaluation.temporal_ensemble_coeff={COEFFICIENT}", "evaluation.num_goals=3", "rollout.envs_per_worker=2")
DRAWS = (0, "evaluate")


def new_rollout(tiny_config: Callable[..., RunConfig], *words: str) -> EmbodiedRollout:
    torch.manual_seed(0)
    return EmbodiedRollout(tiny_config(*WORDS, *words), 0, 1)


def executed_by_hand(rollout: EmbodiedRollout, goal: int) -> np.ndarray:
    """Play a greedy episode in a plain loop, and return its actions, float32 ``[T, A]``."""
    config, env = rollout.config, make_env(rollout.config.env, rollout.config.env.tasks[0], "eval")
    plans, actions, over = list[np.ndarray](), list[np.ndarray](), False
    ids = rollout.policy.encode_instruction(env.get_wrapper_attr("instruction"))[None]
    seen, _ = env.reset(seed=goal, options={"goal": goal})
    while not over:
        batch = {name: padded(np.asarray(values)[None], SMALLEST_BATCH) for name, values in entries_of(seen).items()}
        batch["instruction_ids"] = padded(ids, SMALLEST_BATCH)
        plans.append(rollout.policy.act(batch, None, config.rollout.temperature).actions[0])
        t, oldest = len(plans) - 1, max(0, len(plans) - config.policy.chunk_size)
        weights = np.exp(-COEFFICIENT * np.arange(t + 1 - oldest))
        planned = np.stack([plans[s][t - s] for s in range(oldest, t + 1)])
        action = (weights[:, None] * planned).sum(0) / weights.sum()
        actions.append(np.clip(action, env.action_space.low, env.action_space.high).astype(np.float32))
        seen, _, terminated, truncated, _ = env.step(actions[-1])
        over = terminated or truncated
    env.close()
    return np.stack(actions)


def actions_of(rows: Columns, row: int) -> np.ndarray:
    return rows["actions"][row, : rows["num_steps"][row], 0]


def test_a_step_executes_the_weighted_mean_of_all_plans_for_it() -> None:
    """With m = ln 2 the weights are 1, 1/2 and 1/4, the oldest plan first."""
    ensemble = TemporalEnsemble(np.log(2), num_rows=2, horizon=3, action_dim=1)
    plans = np.array([[1, 2, 3], [10, 20, 30], [100, 200, 300], [1000, 2000, 3000]], np.float32)[..., None]
    means = [ensemble.mean(np.array([1]), np.array([t]), plan[None]).item() for t, plan in enumerate(plans)]
    expected = [1, (2 + 10 / 2) / 1.5, (3 + 20 / 2 + 100 / 4) / 1.75, (30 + 200 / 2 + 1000 / 4) / 1.75]
    assert means == pytest.approx(expected)
    assert ensemble.mean(np.array([0]), np.array([0]), plans[:1]).item() == 1  # another episode


@pytest.mark.parametrize(
    ("coefficient", "expected"),
    [
        (0.01, [0, 0.1, 0.742351, 0.24925, 0.962391, 0.797323, 0.52981, 1.743705, -0.371812, 3.853705]),
        (-0.5, [0, 0.1, 0.767, 0.286738, 0.948789, 0.904539, 0.382899, 1.940426, -0.52918, 3.572764]),
    ],
)
def test_means_are_lerobots(coefficient: float, expected: list[float]) -> None:
    """The numbers are those of LeRobot 0.4.4's ACTTemporalEnsembler for these plans."""
    ensemble, ahead, found = TemporalEnsemble(coefficient, 1, 4, 2), np.arange(4), list[float]()
    for t in range(5):
        planned = np.stack([np.sin(t + 0.7 * ahead), 0.1 * (t + 1) ** 2 + ahead * t], axis=-1).astype(np.float32)
        found += ensemble.mean(np.array([0]), np.array([t]), planned[None])[0].tolist()
    np.testing.assert_allclose(found, expected, atol=2e-6)


@given(st.floats(-1, 1), st.integers(1, 6), st.integers(1, 9), st.integers(0, 99))
def test_plans_that_agree_are_executed(coefficient: float, horizon: int, length: int, seed: int) -> None:
    path = np.random.default_rng(seed).normal(size=(length + horizon, 2)).astype(np.float32)
    ensemble = TemporalEnsemble(coefficient, 1, horizon, 2)
    for t in range(length):
        action = ensemble.mean(np.array([0]), np.array([t]), path[None, t : t + horizon])
        np.testing.assert_allclose(action[0], path[t], atol=1e-5)


def test_an_evaluation_executes_the_means(tiny_config: Callable[..., RunConfig]) -> None:
    rollout = new_rollout(tiny_config)
    rows = rollout.play(rollout.evaluation_episodes(), "eval", None)
    for row, goal in enumerate(rows["goal"].tolist()):
        np.testing.assert_allclose(actions_of(rows, row), executed_by_hand(rollout, goal), atol=1e-6)
    steps, action_dim = rollout.config.env.max_steps, rollout.config.policy.action_dim
    assert rows["actions"].shape == (3, steps, 1, action_dim) and rows["action_tokens"].shape == (3, steps, 0)
    assert np.array_equal(rows["loss_mask"].all(-1).sum(1), rows["num_steps"])
    assert "state" not in rows and "final_state" in rows
    episode = {name: values[1] for name, values in rows.items()}
    assert first_difference(rollout.config, episode, "eval") is None
    chunks = EmbodiedRollout(tiny_config(*WORDS[1:]), 0, 1)
    chunks.policy.model.load_state_dict(rollout.policy.model.state_dict())
    plain = chunks.play(chunks.evaluation_episodes(), "eval", None)
    assert not np.allclose(plain["actions"].reshape(3, -1, action_dim)[:, :steps], rows["actions"][:, :, 0])
    rollout.close(), chunks.close()


def test_a_sampled_episode_depends_on_its_own_seed_alone(tiny_config: Callable[..., RunConfig], tmp_path: Path) -> None:
    rollout, beside = new_rollout(tiny_config), new_rollout(tiny_config, "rollout.env_processes=1")
    episodes = rollout.evaluation_episodes("sampled")
    rows = rollout.play(episodes, "eval", DRAWS)
    assert digest_of(beside.play(episodes, "eval", DRAWS)) == digest_of(rows)
    alone = rollout.play(episodes[2:], "eval", DRAWS, journal := Journal(tmp_path / "rows"))
    again = beside.play(episodes[2:], "eval", DRAWS, journal)  # read from the journal
    assert np.array_equal(alone["actions"][0], rows["actions"][2]) and digest_of(again) == digest_of(alone)
    greedy = rollout.play(episodes, "eval", None)
    assert not np.array_equal(greedy["actions"], rows["actions"])
    rollout.close(), beside.close()


def test_training_executes_chunks(tiny_config: Callable[..., RunConfig]) -> None:
    rollout, plain = new_rollout(tiny_config), EmbodiedRollout(tiny_config(*WORDS[1:]), 0, 1)
    plain.policy.model.load_state_dict(rollout.policy.model.state_dict())
    played = [each.play(each.training_episodes(0, 1), "train", (0, 1, "rollout")) for each in (rollout, plain)]
    assert digest_of(played[0]) == digest_of(played[1])
    rollout.close(), plain.close()


def test_a_run_evaluates_and_keeps_such_episodes(tiny_config: Callable[..., RunConfig]) -> None:
    rollout, call = new_rollout(tiny_config), call_of("evaluate", iteration=0, seed=0)
    for mode in ("greedy", "sampled"):
        output = tasks.evaluate_policy(None, {"mode": mode}, worker=rollout, call=call)
        kept = tasks.play_evaluation(None, {"mode": mode, "task": 0}, worker=rollout, call=call)
        steps = kept.batch["loss_mask"].any(-1).sum(1)
        assert steps.double().mean() == output.metrics[f"eval/{mode}_episode_steps"].value
    rollout.close()


def test_only_the_first_actions_of_a_longer_plan_are_executed_as_a_chunk(
    tiny_config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy plans three actions more than it executes; an ensemble averages these, too."""
    rollout = new_rollout(tiny_config)
    act, chunk_size = rollout.policy.act, rollout.config.policy.chunk_size

    def act_ahead(*arguments: object) -> object:
        decision = act(*arguments)
        more = np.repeat(decision.actions[:, -1:], 3, axis=1)
        object.__setattr__(decision, "actions", np.concatenate([decision.actions, more], axis=1))
        return decision

    expected = rollout.play(rollout.training_episodes(0, 1), "train", (0, 1, "rollout"))
    monkeypatch.setattr(rollout.policy, "act", act_ahead)
    found = rollout.play(rollout.training_episodes(0, 1), "train", (0, 1, "rollout"))
    assert digest_of(found) == digest_of(expected)
    monkeypatch.setattr(type(rollout.policy), "horizon", chunk_size + 3)
    assert np.isfinite(rollout.play(rollout.evaluation_episodes(), "eval", None)["actions"]).all()
    rollout.close()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluation.temporal_ensemble_coeff=2"], "less than or equal to 1"),
        (["policy.chunk_size=1"], "needs policy.chunk_size of at least 2, so that several decisions plan a step"),
    ],
)
def test_mistakes_are_one_line(tiny_config: Callable[..., RunConfig], words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        tiny_config(*WORDS, *words)
    assert "evaluation.temporal_ensemble_coeff" in str(error.value) and "\n" not in str(error.value)


def test_a_film_shows_the_means(tiny_config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    rollout = new_rollout(tiny_config)
    module = "embodyflow.rollouts.embodied.embodied_rollout"
    monkeypatch.setattr(f"{module}.frame_of", lambda config, env: np.zeros((2, 2, 3), np.uint8))
    env, stepped = make_env(rollout.config.env, rollout.config.env.tasks[0], "eval"), list[np.ndarray]()
    step = env.step
    monkeypatch.setattr(env, "step", lambda action: (stepped.append(np.array(action)), step(action))[1])
    clip = rollout._film_episode(env, 0, 1)
    np.testing.assert_allclose(np.stack(stepped), executed_by_hand(rollout, 1), atol=1e-6)
    assert len(clip.frames) == 1 + rollout.config.num_decisions and clip.num_steps == len(stepped)
    rollout.close(), env.close()
