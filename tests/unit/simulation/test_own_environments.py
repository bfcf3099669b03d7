"""Tests of user-defined environments without the adapter: they are played as they are, or refused in one line."""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gymnasium as gym
import imageio.v3 as iio
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from trainers import SEED, new_trainer

import tasks
from embodyflow.columns import COLUMNS
from embodyflow.config import RunConfig
from embodyflow.config.robots.environment import EnvConfig
from embodyflow.data.batches import to_batch
from embodyflow.data.tables import digest_of
from embodyflow.errors import ConfigError
from embodyflow.rollouts.embodied.clips import CAPTION
from embodyflow.rollouts.embodied.contact_sheet import draw_contact_sheet
from embodyflow.rollouts.embodied.embodied_rollout import EmbodiedRollout
from embodyflow.rollouts.replay import film, first_difference
from embodyflow.simulation.make_env import check_environment, make_env
from embodyflow.simulation.vector.worker import EnvNotFiniteError
from embodyflow.training.fsdp_trainer import FSDPTrainer

DRAWS = (0, 1, "rollout")


class Line(gym.Env[Any, np.ndarray]):
    """A point on a line that passes its goal in the third step and continues."""

    tasks = ("go",)
    instruction = "pass the goal"
    num_goals: Mapping[str, int] = MappingProxyType({"train": 8, "demo": 4, "eval": 3})
    observation_space: gym.Space[Any] = Dict(state=Box(-np.inf, np.inf, (2,), np.float32))
    action_space: gym.Space[Any] = Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, task: str, split: str, max_steps: int) -> None:
        self.max_steps = max_steps

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.x, self.steps = float((options or {}).get("goal", 0)), 0
        return self.observe(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.x, self.steps = self.x + float(action[0]), self.steps + 1
        return self.observe(), 0.0, False, self.steps >= self.max_steps, {"success": self.steps == 3}

    def observe(self) -> Any:
        return {"state": np.array([self.x, self.steps], np.float32)}

    def expert_action(self) -> np.ndarray:
        return np.ones(1, np.float32)


ADAPTER = ("env.adapter.success_info=success", "env.kwargs={task:go,split:train,max_steps:20}", "warm_start=null")
WITHOUT_SIZES = ("~policy.hidden_size", "~policy.num_layers")
"""Overrides that remove the sizes of the tiny run's policy, which other policies do not have."""


@pytest.fixture
def config_of(tiny_config: Callable[..., RunConfig]) -> Callable[..., RunConfig]:
    """Return a function that composes a tiny run in one of these environments."""

    def compose(kind: type[Line], *overrides: str) -> RunConfig:
        name = f"tests/{kind.__name__}-v0"
        if name not in gym.registry:
            gym.register(name, kind, disable_env_checker=True)  # the checker would report some faults itself
        own = (f"env.id={__name__}:{name}", "env.tasks=[go]", "policy.state_dim=2", "policy.action_dim=1")
        return tiny_config(*own, *overrides)

    return compose


def new_rollout(config: RunConfig) -> EmbodiedRollout:
    torch.manual_seed(0)  # the weights
    return EmbodiedRollout(config, 0, 1)


class ModeUnknown(Line):
    """An environment without the argument ``render_mode``."""


class ModeRefused(Line):
    metadata: dict[str, Any] = {"render_modes": ["human"]}  # noqa: RUF012 Gymnasium's own

    def __init__(self, *, render_mode: str | None = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        assert render_mode is None or render_mode in self.metadata["render_modes"]
        self.render_mode = render_mode


class NothingDrawn(ModeRefused):
    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 Gymnasium's own

    def render(self) -> Any:
        return None


class NoRender(NothingDrawn):
    render = gym.Env.render


class Grey(NothingDrawn):
    def render(self) -> Any:
        return np.full((8, 8), 7, np.uint8)


class Coloured(NothingDrawn):
    def render(self) -> Any:
        return np.full((8, 8, 3), 25 * self.steps % 256, np.uint8)


DRAWING: dict[type[Line], str] = {
    ModeUnknown: "TypeError: .*unexpected keyword argument 'render_mode'",
    ModeRefused: "AssertionError: .*",
    NoRender: "NotImplementedError",
    NothingDrawn: r"ValueError: render\(\) must return uint8 \[H, W, 3\], returned None",
    Grey: r"ValueError: render\(\) must return uint8 \[H, W, 3\], returned uint8 \(8, 8\)",
}


@pytest.fixture
def no_gl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the check of GL, which these environments do not need."""
    for module in ("embodied.embodied_rollout", "replay", "embodied.contact_sheet"):
        monkeypatch.setattr(f"embodyflow.rollouts.{module}.rendering_problem", lambda: None)


@pytest.mark.usefixtures("no_gl")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("kind", "reason"), DRAWING.items(), ids=[kind.__name__ for kind in DRAWING])
@pytest.mark.parametrize("adapted", [False, True])
def test_an_environment_that_cannot_render_is_reported(
    config_of: Callable[..., RunConfig], tmp_path: Path, kind: type[Line], reason: str, adapted: bool
) -> None:
    config = config_of(kind, *(ADAPTER if adapted else ()))
    rollout = new_rollout(config)
    rows = rollout.play(rollout.training_episodes(0, 1), "train", DRAWS)
    episode = {name: column[0] for name, column in rows.items()}
    problems = [
        rollout.record_video(tmp_path / "greedy.gif", num_episodes=4),
        film(config, episode, tmp_path / "again.gif"),
        draw_contact_sheet(config, rows, tmp_path / "sheet.png", "train"),
    ]
    rollout.close()
    expected = f"env.id={__name__}:tests/{kind.__name__}-v0: cannot render with render_mode=rgb_array: {reason}"
    assert all(re.fullmatch(expected, problem or "") for problem in problems), problems
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("no_gl")
def test_a_video_has_at_most_as_many_episodes_as_goals(config_of: Callable[..., RunConfig], tmp_path: Path) -> None:
    rollout = new_rollout(config_of(Coloured))
    assert rollout.record_video(tmp_path / "greedy.gif", num_episodes=4) is None
    assert iio.imread(tmp_path / "greedy.gif").shape == (1 + 4, CAPTION + 8, 3 * 8, 3)


class Steered(Line):
    action_space = MultiDiscrete([3])


class Whole(Line):
    """An environment with integer actions, to which a policy's actions in (-1, 1) would all round to 0."""

    action_space = Box(-1, 1, (1,), np.int64)


def test_actions_that_are_not_floats_with_bounds_are_refused(config_of: Callable[..., RunConfig]) -> None:
    with pytest.raises(ConfigError, match=r"^policy.num_choices=null: means continuous actions, .* allowed is \[3\]"):
        config_of(Steered)
    with pytest.raises(ConfigError, match=r"^env: actions must be a Box of floats, not Box\(-1, 1, \(1,\), int64\)"):
        config_of(Whole)


class Plain(Line):
    """An environment that observes an array, as most of Gymnasium's do."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)

    def observe(self) -> Any:
        return super().observe()["state"]


class PlainColoured(Plain, Coloured):
    """A plain environment that also renders."""


@pytest.mark.usefixtures("no_gl")
def test_a_plain_array_is_the_state(config_of: Callable[..., RunConfig], tmp_path: Path) -> None:
    named, plain = (new_rollout(config_of(kind)) for kind in (Coloured, PlainColoured))
    assert plain.first_observations() == named.first_observations()
    assert digest_of(plain.demonstrate()) == digest_of(named.demonstrate())
    episodes = named.training_episodes(0, 1)
    assert digest_of(plain.play(episodes, "train", DRAWS)) == digest_of(named.play(episodes, "train", DRAWS))
    assert plain.record_video(tmp_path / "greedy.gif", num_episodes=1) is None
    named.close()
    plain.close()


class Pair(Line):
    observation_space = Tuple((Box(-1.0, 1.0, (2,), np.float32), Discrete(2)))


class Nested(Line):
    observation_space = Dict(state=Dict(x=Box(-1.0, 1.0, (2,), np.float32)))


@pytest.mark.parametrize(("kind", "found"), [(Pair, "Tuple(Box"), (Nested, "Dict('x': Box")])
@pytest.mark.parametrize("size", ["2", "null"])
def test_an_observation_that_is_not_an_array_is_refused(
    config_of: Callable[..., RunConfig], kind: type[Line], found: str, size: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(kind, f"policy.state_dim={size}", "policy.action_dim=null")
    assert str(caught.value).startswith(f"env: observation_space['state'] must be an array of numbers, not {found}")
    assert str(caught.value).endswith("; flatten it by a wrapper in env.adapter.wrappers")


class Goal(Line):
    observation_space = Dict(state=Line.observation_space["state"], goal=Box(-1.0, 1.0, (1,), np.float32))

    def observe(self) -> Any:
        return {**super().observe(), "goal": np.zeros(1, np.float32)}


class Final(Line):
    observation_space = Dict(Line.observation_space.spaces, way=Box(-1.0, 1.0, (1,)), final_way=Box(-1.0, 1.0, (1,)))


def test_an_observation_with_the_name_of_a_column_is_refused(config_of: Callable[..., RunConfig]) -> None:
    message = "^env: the observation 'goal' has the name of a column of episodes; allowed is any name except"
    with pytest.raises(ConfigError, match=message):
        config_of(Goal)
    with pytest.raises(ConfigError, match=message.replace("goal", "final_way")):
        config_of(Final)
    adapted = (*ADAPTER, "+env.adapter.images.success=image", "policy.state_dim=null")
    with pytest.raises(ConfigError, match=message.replace("goal", "success")):
        config_of(Wide, *adapted)


def test_the_names_of_all_columns_are_reserved(config_of: Callable[..., RunConfig]) -> None:
    rollout = new_rollout(config_of(Line))
    rows = rollout.play(rollout.training_episodes(0, 1), "train", DRAWS)
    rollout.close()
    written = {name for node in tasks.__all__ for name in getattr(getattr(tasks, node), "__writes__", ())}
    assert {*rows, *written, *tasks.episodes.TRAINED} - {"state"} <= COLUMNS


class FloatImages(Line):
    observation_space = Dict(image=Box(0.0, 1.0, (16, 16, 3), np.float32))


class Watched(Line):
    observation_space = Dict(state=Line.observation_space["state"], image=Box(0.0, 1.0, (16, 16, 3), np.float32))

    def observe(self) -> Any:
        return {**super().observe(), "image": np.zeros((16, 16, 3), np.float32)}


def test_progress_is_not_measured_from_images_of_floats(config_of: Callable[..., RunConfig]) -> None:
    assert config_of(Watched).progress is None  # a policy that does not use these images may act here
    with pytest.raises(ConfigError, match=r"^progress.embedding.camera=image: the environment has no such camera; it"):
        config_of(Watched, "progress.embedding={name:vjepa2,path:facebook/vjepa2-vitg-fpc64-384}")


class Gridded(Line):
    """An environment that also has a two-dimensional state and an image with its channels first."""

    observation_space = Dict(
        state=Box(-1.0, 1.0, (2, 3), np.float32),
        image=Box(0, 255, (16, 16, 3), np.uint8),
        top=Box(0, 255, (3, 16, 16), np.uint8),
    )

    def observe(self) -> Any:
        return {name: np.zeros(space.shape, space.dtype) for name, space in self.observation_space.items()}


@pytest.mark.parametrize(
    ("embedding", "message"),
    [
        ("{name:state}", r"name=state: the environment's state has shape \(2, 3\); allowed is one dimension"),
        ("{name:vjepa2,path:x/y,camera:top}", "camera=top: the environment has no such camera; allowed are image$"),
    ],
)
def test_progress_is_measured_from_a_vector_or_from_images(
    config_of: Callable[..., RunConfig], embedding: str, message: str
) -> None:
    sees = ("policy.state_dim=0", "policy.image_size=16")
    assert config_of(Gridded, *sees).policy.image_size == 16
    with pytest.raises(ConfigError, match=rf"^progress\.embedding\.{message}"):
        config_of(Gridded, *sees, f"progress.embedding={embedding}")


class Lying(Line):
    """An environment that observes floats although its space declares bytes; the cast would give a black image."""

    observation_space = Dict(image=Box(0, 255, (16, 16, 3), np.uint8))

    def observe(self) -> Any:
        return {"image": np.full((16, 16, 3), 0.5)}


class Forgetful(Line):
    def observe(self) -> Any:
        return {}


def test_images_of_floats_are_refused(config_of: Callable[..., RunConfig]) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(FloatImages, "policy.state_dim=0", "policy.image_size=16", "warm_start=null")
    assert str(caught.value) == (
        "policy.cameras: the environment's 'image' is float32; allowed is uint8 [H, W, 3], from 0 to 255"
    )


@pytest.mark.parametrize(
    ("kind", "words", "message"),
    [
        (
            Lying,
            ["policy.state_dim=0", "policy.image_size=16"],
            r"its observation 'image' must be uint8 \(16, 16, 3\) as in its observation_space, "
            r"is float64 \(16, 16, 3\)",
        ),
        (Forgetful, [], "its observation has no 'state', which its observation_space has"),
    ],
)
def test_an_observation_that_differs_from_its_space_is_refused(
    config_of: Callable[..., RunConfig], kind: type[Line], words: list[str], message: str
) -> None:
    env_id = f"{__name__}:tests/{kind.__name__}-v0"
    with pytest.raises(ConfigError, match=rf"^env.id={env_id}: {message}$"):
        config_of(kind, *words)
    with pytest.raises(ConfigError, match=message):
        check_environment(EnvConfig(id=env_id, tasks=("go",), max_steps=20))  # as embodyflow check-env does


class Wide(Line):
    """A point that moves by up to 4, in one direction only."""

    observation_space = Dict(state=Box(-np.inf, np.inf, (2,), np.float32), image=Box(0, 255, (32, 32, 3), np.uint8))
    action_space = Box(0.0, 4.0, (1,), np.float32)

    def observe(self) -> Any:
        return {**super().observe(), "image": np.zeros((32, 32, 3), np.uint8)}

    def expert_action(self) -> np.ndarray:
        return np.full(1, 3.5, np.float32)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("tiny_vla", ()),
        ("openvla", ("policy=tiny_openvla", "policy.chunk_size=5", *WITHOUT_SIZES, "~policy.state_dim")),
    ],
)
def test_a_token_policy_refuses_other_bounds_than_its_own(
    config_of: Callable[..., RunConfig], policy: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(Wide, *words)
    assert str(caught.value) == (
        f"policy.name={policy}: acts in [-1, 1], the environment in [0.0, 4.0]; scale actions by "
        "env.adapter or Gymnasium's RescaleAction"
    )


def test_noise_in_demonstrations_stays_in_the_environments_bounds(config_of: Callable[..., RunConfig]) -> None:
    words = ("policy=tiny_smolvla", *WITHOUT_SIZES, "policy.chunk_size=5", "warm_start.action_noise=1")
    rollout = new_rollout(config_of(Wide, *words))
    steps = np.diff(rollout.demonstrate()["state"][..., 0])
    assert steps.max() == pytest.approx(4.0, abs=1e-5) and 1.0 < steps.min() < 3.0
    rollout.close()


@pytest.mark.parametrize("chunk_size", [1, 5])
def test_a_success_within_a_chunk_counts(config_of: Callable[..., RunConfig], chunk_size: int) -> None:
    config = config_of(Line, f"policy.chunk_size={chunk_size}")
    rollout = new_rollout(config)
    rows = rollout.play(rollout.training_episodes(0, 1), "train", DRAWS)
    assert rows["success"].all() and (rows["num_steps"] == 20).all() and not rows["terminated"].any()
    assert first_difference(config, {name: column[0] for name, column in rows.items()}) is None
    assert rollout.demonstrate()["num_steps"].tolist() == [20, 20]
    rollout.close()


class Buffered(Line):
    """An environment that returns the same array at every step, in integers, with an entry that its space lacks."""

    observation_space: gym.Space[Any] = Dict(state=Box(0, 2**31 - 2, (2,), np.int64))
    buffer = np.zeros(2, np.int64)

    def observe(self) -> Any:
        self.buffer[:] = self.x, self.steps
        return {"state": self.buffer, "mission": "go"}


def test_demonstrations_copy_each_observation(config_of: Callable[..., RunConfig], close: list[FSDPTrainer]) -> None:
    config = config_of(Buffered, "warm_start.action_noise=0")
    rollout = new_rollout(config)
    demos = to_batch(rollout.demonstrate())
    steps = demos["state"][0, : demos["num_steps"][0], 1]
    assert steps.tolist() == list(range(len(steps)))
    close.append(trainer := new_trainer(config))
    assert np.isfinite(trainer.fit(demos, SEED)["sft/loss"].value), "an integer state must be standardised too"


class NoTasks(Line):
    tasks = None  # type: ignore[assignment]


class Picky(Line):
    def __init__(self, robot: str = "none", **arguments: Any) -> None:
        super().__init__(**arguments)
        assert robot == "none", f"unknown robot {robot}"
        self.arm = {"left": 1}[arguments["task"]]


def test_an_attribute_tasks_that_is_not_a_list_is_ignored(config_of: Callable[..., RunConfig]) -> None:
    config_of(NoTasks, *ADAPTER)
    with pytest.raises(ConfigError, match="declares no tasks, so it cannot follow instructions by itself; define"):
        config_of(NoTasks)


def test_env_kwargs_may_set_render_mode(config_of: Callable[..., RunConfig]) -> None:
    config = config_of(Coloured, "+env.kwargs.render_mode=rgb_array")
    env = make_env(config.env, "go", "train", render_mode="rgb_array")
    assert env.unwrapped.render_mode == "rgb_array"


class Endless(Line):
    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return (*super().step(action)[:3], False, {"success": False})


def test_an_episode_that_continues_after_max_steps_is_an_error(config_of: Callable[..., RunConfig]) -> None:
    rollout = new_rollout(config_of(Endless))
    with pytest.raises(ConfigError, match=r"tests/Endless-v0: an episode continues after env.max_steps=20 steps"):
        rollout.play(rollout.training_episodes(0, 1), "train", DRAWS)
    rollout.close()


class Late(Line):
    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, *_ = super().step(action)
        return observation, reward, False, self.steps > self.max_steps, {"success": False}


def test_an_episode_that_continues_within_the_last_chunk_is_an_error(config_of: Callable[..., RunConfig]) -> None:
    rollout = new_rollout(config_of(Late, "env.max_steps=18"))
    with pytest.raises(ConfigError, match=r"tests/Late-v0: an episode continues after env.max_steps=18 steps"):
        rollout.play(rollout.training_episodes(0, 1), "train", DRAWS)
    rollout.close()


class Seen(Line):
    observation_space: gym.Space[Any] = Dict(
        state=Box(-np.inf, np.inf, (2,), np.float32), image=Box(0, 255, (8, 8, 3), np.uint8)
    )

    def observe(self) -> Any:
        return {**super().observe(), "image": np.full((8, 8, 3), 5 * self.steps, np.uint8)}


@pytest.mark.parametrize("policy", ["tiny_smolvla", "tiny_pi0", "tiny_pi05", "diffusion"])
def test_rollout_and_trainer_agree_on_a_chunk_that_is_cut_while_denoised(
    config_of: Callable[..., RunConfig], policy: str
) -> None:
    words = (f"policy={policy}", *WITHOUT_SIZES, "policy.chunk_size=8", "env.max_steps=11", "warm_start=null")
    config = config_of(Seen, *words)
    rollout = new_rollout(config)
    rows = rollout.play(rollout.training_episodes(0, 1), "train", DRAWS)
    rollout.close()
    num_steps = config.policy.num_action_tokens // 8  # log-probs of an action
    mask = rows["loss_mask"].reshape(len(rows["uid"]), -1)
    assert rows["loss_mask"].shape[1:] == (2, 8 * num_steps) and rows["truncated"].all()
    assert mask[:, : 11 * num_steps].all() and not mask[:, 11 * num_steps :].any()
    log_probs, _ = rollout.policy.evaluate(to_batch(rows), config.rollout.temperature)
    assert rows["log_probs"][rows["loss_mask"]].all()
    assert np.allclose(log_probs.detach().numpy(), rows["log_probs"], rtol=1e-4, atol=1e-4)
    assert first_difference(config, {name: column[0] for name, column in rows.items()}) is None


@pytest.mark.usefixtures("no_gl")
def test_videos_end_with_the_last_executed_action(config_of: Callable[..., RunConfig], tmp_path: Path) -> None:
    config = config_of(Coloured, "env.max_steps=12")
    rollout = new_rollout(config)
    rows = rollout.play(rollout.training_episodes(0, 1), "train", DRAWS)
    assert rollout.record_video(tmp_path / "greedy.gif", num_episodes=1) is None
    rollout.close()
    assert film(config, {name: column[0] for name, column in rows.items()}, tmp_path / "again.gif") is None
    for name in ("greedy.gif", "again.gif"):
        frames = iio.imread(tmp_path / name)
        assert [int(frame[-1, 0, 0]) // 25 for frame in frames] == [0, 5, 10, 12 * 25 % 256 // 25]


class Several(Line):
    tasks = ("go", "stop", "turn")

    def __init__(self, task: str, **arguments: Any) -> None:
        super().__init__(task, **arguments)
        assert task != "stop", "there are no brakes"
        if task == "turn":
            self.observation_space = Dict(state=Box(-np.inf, np.inf, (3,), np.float32))


@pytest.mark.parametrize(
    ("kind", "words", "message"),
    [
        (Picky, "+env.kwargs.robot=arm", r"env.kwargs={'robot': 'arm'}: unknown robot arm"),
        (Picky, "env.tasks=[go]", r"env.kwargs={}: KeyError: 'go'"),
        (Several, "env.tasks=[go,stop]", r"env.tasks: 'stop': env.kwargs={}: there are no brakes"),
        (Several, "env.tasks=[go,turn]", r"env.tasks: 'turn': .*: observes {'state': \(\(3,\), dtype\('float32'\)\)}"),
    ],
)
def test_a_task_that_fails_to_build_or_has_other_spaces_is_refused(
    config_of: Callable[..., RunConfig], kind: type[Line], words: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(kind, words)


def test_the_arguments_of_a_single_task_are_checked_too(config_of: Callable[..., RunConfig]) -> None:
    words = ("env.tasks=[go,wait]", "+env.adapter.task_kwargs.wait.patience=3")
    with pytest.raises(ConfigError, match=r"env.tasks: 'wait': .*unexpected keyword argument 'patience'"):
        config_of(Line, *ADAPTER, *words)


class Stronger(Line):
    tasks = ("go", "push")

    def __init__(self, task: str, **arguments: Any) -> None:
        super().__init__(task, **arguments)
        self.action_space = Box(-1.0, 1.0 if task == "go" else 2.0, (1,), np.float32)


def test_tasks_of_other_bounds_are_refused(config_of: Callable[..., RunConfig]) -> None:
    """Actions are clipped to the bounds of the first task."""
    with pytest.raises(
        ConfigError, match=r"env.tasks: 'push': .* takes Box\(-1.0, 2.0, .*all tasks must have the same"
    ):
        config_of(Stronger, "env.tasks=[go,push]")


class NaNDemonstration(Line):
    """An environment whose demonstrations, but not its other episodes, have a number that is none of its space."""

    wrong = math.nan

    def __init__(self, task: str, split: str, max_steps: int) -> None:
        super().__init__(task, split, max_steps)
        self.demonstrates = split == "demo"

    def observe(self) -> Any:
        return {"state": np.array([self.wrong if self.demonstrates and self.steps == 2 else 0, self.steps])}


class WrappedDemonstration(NaNDemonstration):
    observation_space: gym.Space[Any] = Dict(state=Box(0, 200, (2,), np.int16))
    wrong = 70000


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        (NaNDemonstration, EnvNotFiniteError, "environment 0 returned an observation 'state' that is not finite"),
        (WrappedDemonstration, ValueError, "its observation 'state' has 70000, which the int16 of its observation_spa"),
    ],
)
def test_demonstrations_of_damaged_observations_are_an_error(
    config_of: Callable[..., RunConfig], kind: type[Line], error: type[Exception], message: str
) -> None:
    rollout = new_rollout(config_of(kind))
    with pytest.raises(error, match=re.escape(message)):
        rollout.demonstrate()
    rollout.close()


class Uneven(Line):
    tasks = ("go", "stop")

    def __init__(self, task: str, **arguments: Any) -> None:
        super().__init__(task, **arguments)
        self.num_goals = {"train": 8, "demo": 4, "eval": 3} if task == "go" else {"train": 3, "demo": 2, "eval": 2}


def test_tasks_may_have_different_numbers_of_goals(config_of: Callable[..., RunConfig]) -> None:
    words = ("env.tasks=[go,stop]", "rollout.num_groups=200", "evaluation.num_goals=2", "warm_start.num_demos=2")
    rollout = new_rollout(config_of(Uneven, *words))
    drawn = Counter(
        (each.env_task_id, each.goal) for index in range(40) for each in rollout.training_episodes(0, index)
    )
    rollout.close()
    expected = {(0, goal): 1 / 16 for goal in range(8)} | {(1, goal): 1 / 6 for goal in range(3)}
    assert drawn.keys() == expected.keys()
    for each, share in expected.items():  # within four standard deviations
        groups = 200 * 40
        assert abs(drawn[each] / drawn.total() - share) < 4 * math.sqrt(share / groups)
    with pytest.raises(ConfigError, match=r"^evaluation.num_goals=3: allowed are 1 to 2, the goals of split 'eval'$"):
        config_of(Uneven, *words[:2], "evaluation.num_goals=3", words[3])


class Speechless(Line):
    instruction = None  # type: ignore[assignment]


class Uncounted(Line):
    num_goals = 8  # type: ignore[assignment]


class Goalless(Line):
    num_goals = MappingProxyType({"train": 0, "demo": 4, "eval": 3})


class Verbose(Line):
    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return (*super().step(action)[:4], {"success": "yes"})


class Unsure(Line):
    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return (*super().step(action)[:4], {"success": math.nan})


class Partly(Line):
    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return (*super().step(action)[:4], {"success": 0.3})


class Unpaid(Line):
    def step(self, action: np.ndarray) -> Any:
        return (self.observe(), None, False, False, {"success": False})


class Untaught(Line):
    expert_action = None  # type: ignore[assignment]


class Divided(Line):
    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        raise ZeroDivisionError("by no one")


class Unjudged(Line):
    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return (*super().step(action)[:4], {"won": True})


class FourValues(Line):
    def step(self, action: np.ndarray) -> Any:
        return super().step(action)[:4]  # as in the old Gym


@pytest.mark.parametrize(
    ("kind", "words", "message"),
    [
        (Speechless, (), "its attribute instruction must be a string, is None"),
        (
            Uncounted,
            (),
            "its attribute num_goals must map train, demo, eval to numbers of goals, with at least 1 for train, is 8",
        ),
        (Goalless, (), "its attribute num_goals must map .* numbers of goals, with at least 1 for train, is .*: 0"),
        (Verbose, (), r"the info\['success'\] of its step\(\) must be true or false, or a number, .* is 'yes'"),
        (Unsure, (), r"the info\['success'\] of its step\(\) must be true or false, or a number, .* is nan"),
        (Partly, (), r"the info\['success'\] of its step\(\) is 0\.3, and a share of the goal is no success"),
        (Unpaid, (), r"the reward of its step\(\) must be a finite number, is None"),
        (
            Unjudged,
            (),
            "the info of its step\\(\\) has no 'success', which every task needs; add it, or define ",
        ),
        (Divided, (), r"ZeroDivisionError: by no one, at .*test_own_environments.py:\d+"),
        (Divided, ADAPTER, r"ZeroDivisionError: by no one, at .*test_own_environments.py:\d+"),
        (FourValues, ADAPTER, r"ValueError: not enough values to unpack \(expected 5, got 4\), at "),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_faulty_environment_is_refused_in_one_line(
    config_of: Callable[..., RunConfig], kind: type[Line], words: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^env.id={__name__}:tests/{kind.__name__}-v0: {message}"):
        config_of(kind, *words)


def test_a_module_that_fails_to_import_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "misspelt.py").write_text("x = = 1")
    monkeypatch.syspath_prepend(tmp_path)
    values = {"id": "misspelt:my/Env-v0", "tasks": ("go",), "max_steps": 3}
    with pytest.raises(ConfigError, match=r"^env.id=misspelt:my/Env-v0: cannot import module 'misspelt': Syntax"):
        check_environment(EnvConfig(**values))
    adapter = {"success_info": "won", "wrappers": ("misspelt:f",)}
    with pytest.raises(ConfigError, match=r"^env.adapter.wrappers=misspelt:f: cannot be imported: SyntaxError: "):
        check_environment(EnvConfig(**{**values, "id": "Reacher-v5", "adapter": adapter}))


def test_an_environment_whose_expert_is_null_cannot_demonstrate(config_of: Callable[..., RunConfig]) -> None:
    rollout = new_rollout(config_of(Untaught))  # accepted, because an evaluation needs no expert
    with pytest.raises(ConfigError, match=r"tests/Untaught-v0: has no scripted expert; set warm_start=null$"):
        rollout.demonstrate()
    rollout.close()
    with pytest.raises(ConfigError, match=r"tests/Untaught-v0: has no scripted expert, which dagger needs$"):
        config_of(Untaught, "algorithm=dagger", "rollout.group_size=1", "warm_start.num_demos=1")


class Inept(Line):
    def expert_action(self) -> np.ndarray:
        return np.ones(2, np.float32)


class Lost(Line):
    def expert_action(self) -> np.ndarray:
        return np.full(1, np.nan, np.float32)


@pytest.mark.parametrize(("kind", "returned"), [(Inept, r"\[1., 1.\]"), (Lost, r"\[nan\]")])
def test_an_invalid_expert_action_is_an_error(
    config_of: Callable[..., RunConfig], kind: type[Line], returned: str
) -> None:
    rollout = new_rollout(config_of(kind))
    message = rf"expert_action\(\) must return finite numbers \(1,\), returned array\({returned}"
    with pytest.raises(ConfigError, match=message):
        rollout.demonstrate()
    rollout.close()


def clueless(env: gym.Env[Any, Any], observation: Any) -> None:
    """Return no action."""


def test_an_adapters_expert_is_checked(config_of: Callable[..., RunConfig]) -> None:
    words = (*ADAPTER[:2], f"env.adapter.expert={__name__}:clueless")
    message = rf"^env.adapter.expert={__name__}:clueless: must return finite numbers \(1,\), returned None$"
    with pytest.raises(ConfigError, match=message):
        config_of(Line, *words)
