"""Tests of embodied rollouts with small Meta-World episodes."""

import functools
import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from node_calls import call_of

import tasks
from embodyflow.config import RunConfig
from embodyflow.data.batches import Columns, to_batch
from embodyflow.data.rows_file import Journal
from embodyflow.data.tables import Table, digest_of
from embodyflow.errors import ConfigError
from embodyflow.policies.base import Decision
from embodyflow.policies.embodied.tiny_vla.processing_tiny_vla import TinyVLAProcessor
from embodyflow.rollouts.embodied.clips import CAPTION
from embodyflow.rollouts.embodied.embodied_rollout import EmbodiedRollout
from embodyflow.rollouts.embodied.episode_rows import Episode
from embodyflow.rollouts.replay import first_difference
from embodyflow.simulation.make_env import make_env
from embodyflow.simulation.rendering import rendering_problem

DRAWS = (0, 1, "rollout")


@pytest.fixture(scope="module")
def config(tiny_config) -> RunConfig:
    return tiny_config("rollout.envs_per_worker=3")


@pytest.fixture(scope="module")
def rollout(config: RunConfig) -> EmbodiedRollout:
    return new_rollout(config)


@pytest.fixture(scope="module")
def played(rollout: EmbodiedRollout) -> Columns:
    return rollout.play(rollout.training_episodes(0, 1), "train", DRAWS)


def new_rollout(config: RunConfig, rank: int = 0, world_size: int = 1) -> EmbodiedRollout:
    torch.manual_seed(0)  # the weights
    return EmbodiedRollout(config, rank, world_size)


class GoalSeeker:
    """A policy that moves the hand towards the goal by action tokens."""

    def __init__(self, config: RunConfig) -> None:
        self._config, self._processor = config.policy, TinyVLAProcessor(config.policy)

    def act(self, observation: dict[str, np.ndarray], uniforms: object, temperature: float) -> Decision:
        towards = torch.from_numpy(observation["state"][:, 21:24])
        action = torch.nn.functional.pad((10 * towards).clamp(-1, 1), (0, 1))
        tokens = self._processor.tokens(action.unsqueeze(1).expand(-1, self._config.chunk_size, -1))
        actions = self._processor.actions(tokens)
        return Decision(tokens.numpy(), np.full(tokens.shape, -1, np.float32), actions.numpy())


def test_the_columns_are_those_of_an_embodied_row(config: RunConfig, played: Columns) -> None:
    decisions = (4, 4, 20)
    shapes = {name: (array.dtype.name, array.shape) for name, array in played.items()}
    assert shapes == {
        **dict.fromkeys(["uid", "group_id", "policy_version", "seed", "env_task_id", "goal"], ("int64", (4,))),
        **dict.fromkeys(["success", "terminated", "truncated"], ("bool", (4,))),
        "num_steps": ("int64", (4,)),
        "episode_return": ("float32", (4,)),
        "state": ("float32", (4, 4, 30)),
        "final_state": ("float32", (4, 30)),
        "instruction_ids": ("int64", (4, config.policy.max_instruction_length)),
        "action_tokens": ("int64", decisions),
        "actions": ("float32", (4, 4, 5, 4)),
        "log_probs": ("float32", decisions),
        "loss_mask": ("bool", decisions),
    }


def test_the_same_seed_gives_the_same_rows(config: RunConfig, played: Columns, rollout: EmbodiedRollout) -> None:
    other = new_rollout(config)
    again = other.play(other.training_episodes(0, 1), "train", DRAWS)
    other.close()
    assert digest_of(again) == digest_of(played)
    rows = rollout.play(rollout.training_episodes(0, 1), "train", DRAWS)  # in environments that played other episodes
    assert digest_of(rows) == digest_of(played)


def test_another_seed_gives_other_actions(rollout: EmbodiedRollout, played: Columns) -> None:
    other = rollout.play(rollout.training_episodes(0, 1), "train", (0, 2, "rollout"))
    assert (other["action_tokens"] != played["action_tokens"]).any(axis=(1, 2)).all()
    assert np.array_equal(other["goal"], played["goal"])


@pytest.mark.parametrize("chosen", [[2], [3, 0], [1, 2, 3]])
def test_a_row_does_not_depend_on_its_neighbours(rollout: EmbodiedRollout, played: Columns, chosen: list[int]) -> None:
    episodes = rollout.training_episodes(0, 1)
    alone = rollout.play([episodes[row] for row in chosen], "train", DRAWS)
    for name, array in alone.items():
        assert np.array_equal(array, played[name][chosen]), name


def test_a_rollout_continues_from_the_journal_of_a_killed_one(
    rollout: EmbodiedRollout, played: Columns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "0.0.parts")
    append = Journal.append

    def append_and_die(self: Journal, table: Table) -> None:
        append(self, table)
        raise KeyboardInterrupt

    episodes = rollout.training_episodes(0, 1)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Journal, "append", append_and_die)
        new_rollout(rollout.config).play(episodes, "train", DRAWS, journal)
    [kept] = journal.read()
    assert 0 < len(kept["uid"]) < len(episodes)
    started: list[int] = []
    later = new_rollout(rollout.config)
    env = later.env("train")
    reset = env.reset_async
    monkeypatch.setattr(env, "reset_async", lambda slots, **given: started.extend(slots) or reset(slots, **given))
    again = later.play(episodes, "train", DRAWS, journal)
    assert len(started) == len(episodes) - len(kept["uid"])
    for name in played:
        assert np.array_equal(again[name], played[name]), name


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_ranks_share_the_groups(config: RunConfig, world_size: int) -> None:
    episodes = []
    for rank in range(world_size):
        rollout = new_rollout(config, rank, world_size)
        episodes += rollout.training_episodes(seed=3, iteration=5)
        rollout.close()
    assert [episode.row for episode in episodes] == [0, 1, 2, 3]
    assert [episode.uid for episode in episodes] == [20, 21, 22, 23]
    assert [episode.group_id for episode in episodes] == [10, 10, 11, 11]
    assert len({(episode.group_id, episode.goal) for episode in episodes}) == 2
    whole = new_rollout(config)
    assert episodes == whole.training_episodes(seed=3, iteration=5)


def test_rerolled_episodes_have_other_ids_and_goals(rollout: EmbodiedRollout) -> None:
    rounds = [rollout.training_episodes(3, iteration, reroll) for iteration in (1, 2) for reroll in (0, 1, 2)]
    episodes = [episode for each in rounds for episode in each]
    assert len({episode.uid for episode in episodes}) == len(episodes) == 24
    assert len({episode.group_id for episode in episodes}) == 12
    assert [episode.row for each in rounds[:3] for episode in each] == list(range(12))  # parts of their seeds
    assert len({tuple(episode.goal for episode in each) for each in rounds}) == 6
    assert rounds[1] == rollout.training_episodes(3, 1, reroll=1)


def test_only_a_single_rollout_worker_can_sum_over_all_rows(tiny_config) -> None:
    config = tiny_config("algorithm.advantage=reinforce_plus_plus")
    alone, of_two = new_rollout(config), new_rollout(config, 0, world_size=2)
    rows = torch.tensor([1.0, 2.0])
    assert torch.equal(alone.all_reduce(rows), rows)
    with pytest.raises(ConfigError, match=r"num_workers=2: algorithm\.advantage=reinforce_plus_plus needs sums"):
        of_two.all_reduce(rows)
    alone.close()
    of_two.close()


def test_several_tasks_share_the_groups_and_the_goals(tiny_config) -> None:
    config = tiny_config("env.tasks=[reach-v3,push-v3]", "evaluation.num_goals=3")
    rollout = new_rollout(config)
    episodes = rollout.training_episodes(0, 1)
    assert [episode.env_task_id for episode in episodes] == [0, 0, 1, 1]
    wanted = sorted((task, goal) for task in (0, 1) for goal in range(3))
    assert sorted((episode.env_task_id, episode.goal) for episode in rollout.evaluation_episodes()) == wanted
    halves = [new_rollout(config, rank, 2).evaluation_episodes() for rank in (0, 1)]
    assert sorted((e.env_task_id, e.goal) for half in halves for e in half) == wanted
    assert [{e.env_task_id for e in half} for half in halves] == [{0, 1}] * 2  # each rank has episodes of both tasks
    rows = rollout.play(episodes, "train", DRAWS)
    ids = [rollout.policy.encode_instruction(text) for text in ("reach the goal position", "push the puck to the goal")]
    assert np.array_equal(rows["instruction_ids"], np.stack([ids[0], ids[0], ids[1], ids[1]]))
    assert (rows["state"][0, 0, 18:21] != rows["state"][2, 0, 18:21]).any()
    rollout.close()


def test_a_rank_without_goals_of_a_task_evaluates_no_rows_of_it(tiny_config) -> None:
    config = tiny_config("env.tasks=[reach-v3,push-v3]", "evaluation.num_goals=1")
    rollout = new_rollout(config, rank=1, world_size=2)
    assert [rollout.evaluation_episodes("sampled", task) for task in (0, 1)] == [[], [Episode(1, 1, 1, 1, goal=0)]]
    call = call_of("evaluate", iteration=0, seed=0)
    output = tasks.play_evaluation(None, {"mode": "sampled", "task": 0}, worker=rollout, call=call)
    rollout.close()
    assert len(output.batch) == 0 and output.metrics["eval/success_rate"].weight == 0


def test_siblings_start_in_the_same_state_and_act_differently(played: Columns) -> None:
    for a, b in ((0, 1), (2, 3)):
        assert np.array_equal(played["state"][a, 0], played["state"][b, 0])
        assert (played["action_tokens"][a, 0] != played["action_tokens"][b, 0]).any()
    assert (played["state"][0, 0] != played["state"][2, 0]).any()


def test_the_mask_covers_exactly_the_executed_actions(tiny_config) -> None:
    config = tiny_config("env.max_steps=30")
    rollout = new_rollout(config)
    rollout.policy.act = GoalSeeker(config).act  # type: ignore[method-assign]
    rows = rollout.play([Episode(i, i, i, 0, goal=i) for i in range(6)], "train", DRAWS)
    rollout.close()
    steps, mask, dims = rows["num_steps"], rows["loss_mask"], config.policy.action_dim
    assert rows["success"].any() and not rows["success"].all()  # both ends occur
    assert np.array_equal(mask.sum(axis=(1, 2)), steps * dims)
    for row in range(6):
        executed = mask[row].reshape(-1)  # ordered by decision, chunk step and dimension
        assert executed[: steps[row] * dims].all() and not executed[steps[row] * dims :].any()
    assert not rows["log_probs"][~mask].any()
    assert not any(rows[name][~mask.any(axis=2)].any() for name in ("state", "action_tokens"))
    assert rows["state"][mask.any(axis=2)].any(axis=-1).all()
    # An episode ends either by success, which terminates it, or by its length, which truncates it.
    assert np.array_equal(rows["terminated"], rows["success"])
    assert np.array_equal(rows["truncated"], ~rows["success"])
    assert (steps[rows["truncated"]] == 30).all() and (steps[rows["terminated"]] <= 30).all()
    # Success means that the hand is within 5 cm of the goal after the last action.
    near = np.linalg.norm(rows["final_state"][:, 21:24], axis=1) <= 0.05
    assert np.array_equal(near, rows["success"])


@pytest.mark.parametrize("max_steps", [3, 12, 19])
def test_the_time_limit_cuts_the_last_chunk(tiny_config, max_steps: int) -> None:
    config = tiny_config(f"env.max_steps={max_steps}", "rollout.envs_per_worker=3")
    rollout = new_rollout(config)
    rows = rollout.play(rollout.training_episodes(0, 1), "train", DRAWS)
    rollout.close()
    num_decisions, dims = math.ceil(max_steps / 5), config.policy.action_dim
    assert rows["loss_mask"].shape == (4, num_decisions, 5 * dims)
    assert (rows["num_steps"] == max_steps).all() and rows["truncated"].all() and not rows["terminated"].any()
    mask = rows["loss_mask"].reshape(4, -1)
    assert mask[:, : max_steps * dims].all() and not mask[:, max_steps * dims :].any()
    assert not rows["log_probs"].reshape(4, -1)[:, max_steps * dims :].any()
    assert not rows["actions"].reshape(4, -1, dims)[:, max_steps:].any()
    assert rows["action_tokens"][:, -1].any(axis=0).all(), "the whole decision is on record"
    for row in range(4):  # a plain loop over the recorded actions
        env, goal = rollout_env(config), int(rows["goal"][row])
        env.reset(seed=goal, options={"goal": goal})
        for action in rows["actions"][row].reshape(-1, dims)[:max_steps]:
            observation, _, terminated, truncated, _ = env.step(action)
        assert truncated and not terminated
        assert np.array_equal(rows["final_state"][row], observation["state"])
        assert first_difference(config, {name: column[row] for name, column in rows.items()}) is None
    log_probs, entropy = rollout.policy.evaluate(to_batch(rows), config.rollout.temperature)
    assert np.allclose(log_probs.detach().numpy(), rows["log_probs"], atol=1e-5)
    assert not entropy[~torch.from_numpy(rows["loss_mask"])].any()


def rollout_env(config: RunConfig) -> gym.Env[Any, Any]:
    return make_env(config.env, "reach-v3", "train")


def test_a_longer_last_chunk_changes_no_earlier_decision(tiny_config) -> None:
    def rows_of(max_steps: int) -> Columns:
        rollout = new_rollout(tiny_config(f"env.max_steps={max_steps}"))
        rows = rollout.play(rollout.training_episodes(0, 1), "train", DRAWS)
        rollout.close()
        return rows

    cut, whole = rows_of(17), rows_of(20)
    for name in ("state", "action_tokens"):
        assert np.array_equal(cut[name], whole[name]), name
    executed = cut["loss_mask"]
    assert np.array_equal(cut["log_probs"][executed], whole["log_probs"][executed])


def test_an_episode_replayed_from_its_row_has_the_same_return(rollout: EmbodiedRollout, played: Columns) -> None:
    env = make_env(rollout.config.env, "reach-v3", "train")
    tokens = torch.from_numpy(played["action_tokens"][3])
    actions = TinyVLAProcessor(rollout.config.policy).actions(tokens).flatten(0, 1).numpy()
    env.reset(options={"goal": int(played["goal"][3])})
    rewards = [env.step(action)[1] for action in actions[: played["num_steps"][3]]]
    assert played["episode_return"][3] == pytest.approx(sum(rewards), rel=1e-5)


def test_greedy_episodes_are_deterministic(rollout: EmbodiedRollout) -> None:
    episodes = rollout.evaluation_episodes()
    first, again = (rollout.play(episodes, "eval", None) for _ in range(2))
    assert digest_of(first) == digest_of(again)
    assert not first["seed"].any()
    observation = {"state": first["state"][:, 0], "instruction_ids": first["instruction_ids"]}
    likeliest = rollout.policy.act(observation, None, 1.0).tokens
    assert np.array_equal(first["action_tokens"][:, 0], likeliest)


def test_rows_have_the_version_of_the_new_weights(config: RunConfig) -> None:
    rollout = new_rollout(config)
    episodes = rollout.training_episodes(0, 1)
    before = rollout.play(episodes, "train", DRAWS)
    weights = {name: value.numpy().copy() for name, value in rollout.policy.model.state_dict().items()}
    weights["head.coefficients.bias"] = weights["head.coefficients.bias"] + np.linspace(
        0, 3, len(weights["head.coefficients.bias"]), dtype=np.float32
    )
    for array in weights.values():
        array.flags.writeable = False  # as weights from a buffer are
    rollout.update_weights(weights, version=7)
    after = rollout.play(episodes, "train", DRAWS)
    rollout.close()
    assert before["policy_version"].tolist() == [-1] * 4 and after["policy_version"].tolist() == [7] * 4
    assert (before["action_tokens"] != after["action_tokens"]).any()


@pytest.mark.parametrize("num_workers", [2, 3, 5])
def test_a_batch_does_not_depend_on_the_number_of_workers(tiny_config, num_workers: int) -> None:
    """The weights that are trained on it do not either: the trainer joins the shares in the order of the ranks."""
    words = ("rollout.num_groups=5", "evaluation.num_goals=5")
    config = tiny_config(*words)
    whole = new_rollout(config)
    expected = whole.play(whole.training_episodes(0, 2), "train", DRAWS)
    shares = []
    for rank in range(num_workers):
        rollout = new_rollout(tiny_config(*words, f"rollout.num_workers={num_workers}"), rank, num_workers)
        rollout.policy.model.load_state_dict(whole.policy.model.state_dict())
        shares.append(rollout.play(rollout.training_episodes(0, 2), "train", DRAWS))
    sizes = [len(share["uid"]) // config.rollout.group_size for share in shares]
    assert sum(sizes) == 5 and max(sizes) - min(sizes) <= 1 and min(sizes) > 0
    for name, column in expected.items():
        assert np.concatenate([share[name] for share in shares]).tobytes() == column.tobytes(), name


def test_demonstrations_are_the_experts_successes_on_separate_goals(tiny_config) -> None:
    config = tiny_config("env.max_steps=80", "warm_start.num_demos=3", "rollout.num_groups=2", "rollout.num_workers=2")
    whole = new_rollout(config).demonstrate()
    halves = [new_rollout(config, rank, 2).demonstrate() for rank in (0, 1)]
    assert sorted(uid for half in halves for uid in half["uid"].tolist()) == whole["uid"].tolist() == [0, 1, 2]
    assert whole["state"].shape == (3, 80, 30) and whole["actions"].shape == (3, 80, 4)
    for row, length in enumerate(whole["num_steps"]):
        assert 0 < length < 80
        state, action = whole["state"][row], whole["actions"][row]
        assert np.abs(action[:length]).sum(axis=1).all() and not action[length:].any() and not state[length:].any()
        # Success means that the hand is within 5 cm of the goal; an action moves it by at most 1 cm.
        assert np.linalg.norm(state[length - 1, 21:24]) < 0.06
    goals = {tuple(state) for state in whole["state"][:, 0, 18:21].tolist()}
    trained = new_rollout(config)
    rows = trained.play([Episode(i, i, i, 0, goal=i) for i in range(3)], "train", None)
    assert goals.isdisjoint(tuple(state) for state in rows["state"][:, 0, 18:21].tolist())


def test_held_out_goals_are_those_of_no_demonstration(tiny_config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embodyflow.environments.metaworld.MetaWorldEnv.num_goals", {"train": 8, "demo": 6, "eval": 8})
    words = ("env.tasks=[reach-v3,push-v3]", "env.max_steps=80", "warm_start.num_demos=2", "rollout.num_workers=2")
    config = tiny_config(*words, "warm_start.until={success:0.5,max_steps:9,num_held_out:3}")
    halves = [new_rollout(config, rank, 2).held_out_episodes() for rank in (0, 1)]
    assert [[(e.row, e.env_task_id, e.goal) for e in half] for half in halves] == [
        [(0, 0, 3), (3, 1, 4), (4, 0, 5)],
        [(1, 1, 3), (2, 0, 4), (5, 1, 5)],
    ]
    goals = new_rollout(config).demonstrate()["uid"] % 10**6
    assert goals.max() < 3


def test_a_warm_start_is_measured_on_held_out_goals(tiny_config) -> None:
    config = tiny_config("env.max_steps=80", "warm_start.until={success:0.5,max_steps:9,num_held_out:3}")
    rollout = new_rollout(config)
    first, again = (tasks.measure_warm_start(None, worker=rollout, call=call_of(iteration=0)) for _ in range(2))
    assert first.metrics["sft/success_rate"].weight == 3
    assert first.metrics["sft/success_rate"] == again.metrics["sft/success_rate"]
    weights = {name: value.numpy() for name, value in rollout.policy.model.state_dict().items()}
    measuring = rollout.env("demo")
    rollout.update_weights(weights, version=-9)
    assert rollout.env("demo") is measuring
    rollout.update_weights(weights, version=0)
    assert rollout.env("demo") is not measuring, "RL does not keep the environments of the warm start"
    rollout.close()


def test_the_ranks_share_the_demonstrations_of_the_tasks(tiny_config) -> None:
    config = tiny_config("env.max_steps=80", "env.tasks=[reach-v3,push-v3]", "warm_start.num_demos=1")
    whole = new_rollout(config).demonstrate()
    halves = [new_rollout(config, rank, 2).demonstrate() for rank in (0, 1)]
    assert [half["uid"].tolist() for half in halves] == [[0], [10**6]] and whole["uid"].tolist() == [0, 10**6]
    np.testing.assert_array_equal(np.concatenate([half["state"] for half in halves]), whole["state"])


def test_a_rank_without_demonstrations_has_empty_columns(tiny_config) -> None:
    config = tiny_config("env.max_steps=80", "warm_start.num_demos=1")
    whole = new_rollout(config).demonstrate()
    first, second = (new_rollout(config, rank, 2).demonstrate() for rank in (0, 1))
    assert digest_of(first) == digest_of(whole) and first["uid"].tolist() == [0]
    assert {name: (c.dtype, c.shape[1:]) for name, c in second.items()} == {
        name: (c.dtype, c.shape[1:]) for name, c in whole.items()
    }
    assert all(len(column) == 0 for column in second.values())


def test_the_last_rank_has_work_if_there_is_enough(tiny_config) -> None:
    tasks = "env.tasks=[reach-v3,push-v3,pick-place-v3]"
    config = tiny_config("env.max_steps=80", tasks, "evaluation.num_goals=2", "rollout.num_groups=3")
    last = new_rollout(config, 4, 5)
    assert last.demonstrate()["uid"].tolist() == [2 * 10**6]
    assert [(e.row, e.env_task_id, e.goal) for e in last.evaluation_episodes()] == [(2, 2, 0)]


def test_a_goal_that_the_expert_misses_is_skipped(tiny_config) -> None:
    assert new_rollout(tiny_config("env.max_steps=80")).demonstrate()["num_steps"].tolist() == [36, 50]
    first, second = new_rollout(tiny_config("env.max_steps=45")).demonstrate()["uid"].tolist()
    assert first == 0 and second > 1 and second % 2 == 1  # the first demonstration tries the even goals only


def test_noise_disturbs_the_executed_actions_but_not_the_recorded_ones(tiny_config) -> None:
    clean = new_rollout(tiny_config("env.max_steps=80")).demonstrate()
    noisy, again = (
        new_rollout(tiny_config("env.max_steps=80", "warm_start.action_noise=0.5")).demonstrate() for _ in range(2)
    )
    np.testing.assert_array_equal(noisy["actions"][0, 0], clean["actions"][0, 0])  # the same state, the same action
    assert (noisy["state"][0, 1] != clean["state"][0, 1]).any()
    np.testing.assert_array_equal(noisy["state"], again["state"])


def test_an_expert_that_fails_too_often_is_an_error(tiny_config, monkeypatch: pytest.MonkeyPatch) -> None:
    rollout = new_rollout(tiny_config("env.max_steps=5"))  # too few steps for any goal
    monkeypatch.setattr("embodyflow.environments.metaworld.MetaWorldEnv.num_goals", {"train": 8, "demo": 3, "eval": 8})
    message = r"warm_start.num_demos=2: the expert of reach-v3 reached none of 2 goals; env.max_steps=5 may be too sm"
    with pytest.raises(ConfigError, match=message):
        rollout.demonstrate()


def test_an_environment_without_an_expert_is_an_error(
    rollout: EmbodiedRollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("embodyflow.environments.metaworld.MetaWorldEnv.expert_action")
    with pytest.raises(ConfigError, match="has no scripted expert; set warm_start=null"):
        rollout.demonstrate()


def test_a_video_shows_the_episodes_side_by_side(rollout: EmbodiedRollout, tmp_path: Path) -> None:
    iio = pytest.importorskip("imageio.v3")
    if (problem := rendering_problem()) is not None:
        pytest.skip(problem)
    assert rollout.record_video(tmp_path / "episodes.gif", num_episodes=2) is None
    frames = iio.imread(tmp_path / "episodes.gif")
    height, width = frames.shape[1:3]
    assert width == 2 * (height - CAPTION) and len(frames) == 1 + rollout.config.num_decisions
    assert frames[0].std() > 10  # not blank
    assert (frames[0] != frames[-1]).any()


def test_record_video_returns_the_reason_if_rendering_is_impossible(
    rollout: EmbodiedRollout, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = functools.partial(str, "no EGL here")
    monkeypatch.setattr("embodyflow.rollouts.embodied.embodied_rollout.rendering_problem", probe)
    assert rollout.record_video(tmp_path / "episodes.gif", num_episodes=1) == "no EGL here"
    assert not (tmp_path / "episodes.gif").exists()


def test_the_first_observation_of_each_task_has_its_own_digest(tiny_config, config: RunConfig) -> None:
    both = new_rollout(tiny_config("env.tasks=[reach-v3,push-v3]"))
    alone = new_rollout(config)
    seen, again = both.first_observations(), alone.first_observations()
    assert list(seen) == ["reach-v3", "push-v3"] and list(again) == ["reach-v3"]
    assert seen["reach-v3"] == again["reach-v3"] == alone.first_observations()["reach-v3"]
    assert seen["reach-v3"]["digest"] != seen["push-v3"]["digest"]
    assert not seen["reach-v3"]["stand_in_assets"]


def test_the_ranks_share_the_goals_of_one_task(tiny_config) -> None:
    config = tiny_config("env.tasks=[reach-v3,push-v3]", "evaluation.num_goals=3")
    ranks = [new_rollout(config, rank, 2) for rank in (0, 1)]
    shares = [rank.evaluation_episodes("greedy", task=1) for rank in ranks]
    assert [(e.row, e.env_task_id, e.goal) for share in shares for e in share] == [(3, 1, 1), (1, 1, 0), (5, 1, 2)]
    everything = {e.row for rank in ranks for e in rank.evaluation_episodes()}
    assert everything == set(range(6))
