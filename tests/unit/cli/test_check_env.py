"""The checks of ``embodyflow check-env`` on environments that violate one requirement each."""

import mmap
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box

from embodyflow.cli.environments.check_env import CHECKS, Subject, configuration, show
from embodyflow.cli.environments.described_spaces import describe_space, is_bounded
from embodyflow.cli.main import main
from embodyflow.config.composition.compose import compose_config
from embodyflow.config.robots.environment import EnvConfig
from embodyflow.errors import ConfigError

LEAKED: list[mmap.mmap] = []


class Point(gym.Env):
    """An environment that meets all requirements but the one in ``breaks``."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012

    def __init__(self, breaks: str = "", render_mode: str | None = None) -> None:
        self.breaks, self.render_mode = breaks, render_mode
        self.observation_space, self.action_space = Box(-99, 99, (1,), np.float32), Box(-1, 1, (1,), np.float32)
        self.pushed = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        if self.breaks == "large seeds":
            np.random.RandomState(4 * (seed or 0))
        super().reset(seed=None if self.breaks == "seeded reset" else seed)
        self.x = 0.0 if self.breaks == "variety" else self.np_random.random()
        if self.breaks != "restore by seed":
            self.pushed = 0.0
        if self.breaks == "leak":
            LEAKED.append(mmap.mmap(-1, 2**18))  # not on the heap, which may have free space from earlier tests
            LEAKED[-1].write(b"x" * 2**18)
        return np.array([self.x], np.float32), {}

    def step(self, action: np.ndarray):
        if self.breaks == "chunks":
            action[:] = self.pushed  # writes into the caller's array and so changes the next action
        self.pushed += float(action[0])
        self.x += 0.01 * self.pushed + (np.random.random() if self.breaks == "determinism" else 0.0)
        return np.array([self.x], np.float32), self.x, False, False, {}

    def render(self) -> np.ndarray:
        frame = np.zeros((8, 8, 3), np.float64 if self.breaks == "render" else np.uint8)
        frame[:4] = 200
        return frame


gym.register("tests/Point-v0", Point, max_episode_steps=100)


class Guided(Point):
    """A variant that names its tasks."""

    tasks = ("go",)
    instruction = "push"
    num_goals = {"train": 4, "demo": 4, "eval": 4}  # noqa: RUF012

    def __init__(self, task: str, split: str, max_steps: int, breaks: str = "") -> None:
        super().__init__(breaks)
        self.left = max_steps if breaks != "truncation" else 10**6
        if breaks == "goals":
            self.num_goals = {"train": 4}
        self.first = 10 if split == "eval" and breaks != "splits" else 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        return super().reset(seed=self.first + (options or {}).get("goal", 0))

    def step(self, action: np.ndarray):
        self.left -= 1
        return (*super().step(action)[:3], self.left <= 0, {} if self.breaks == "success" else {"success": False})


gym.register("tests/Guided-v0", Guided)


@pytest.mark.parametrize(
    ("breaks", "verdict", "details"),
    [
        ("", "ok", "evaluation has its own initial states"),
        ("splits", "FAIL", "evaluation starts from the initial states of training"),
        ("success", "FAIL", "info has no 'success'"),
        ("truncation", "FAIL", "an episode continues after max_steps=30"),
        (
            "goals",
            "FAIL",
            f"env.id={__name__}:tests/Guided-v0: its attribute num_goals must map train, demo, eval to numbers of "
            "goals, with at least 1 for train, is {'train': 4}",
        ),
    ],
)
def test_the_interface_of_an_environment_with_tasks_is_checked(breaks: str, verdict: str, details: str) -> None:
    config = EnvConfig(id=f"{__name__}:tests/Guided-v0", tasks=("go",), kwargs={"breaks": breaks}, max_steps=30)
    finding = CHECKS["goals"](Subject(config))
    assert (finding.verdict, finding.details) == (verdict, details)


def run(check: str, breaks: str):
    kwargs = {"breaks": breaks}
    subject = Subject(EnvConfig(id=f"{__name__}:tests/Point-v0", tasks=(), kwargs=kwargs, max_steps=100))
    return CHECKS[check](subject)


@pytest.mark.parametrize("check", ["seeded reset", "determinism", "restore by seed", "render", "leak"])
def test_a_violation_is_found_and_a_correct_environment_passes(check: str) -> None:
    if check == "render" and run(check, "").verdict == "note":
        pytest.skip("no rendering here")
    assert run(check, "").verdict == "ok"
    broken = run(check, check)
    LEAKED.clear()
    assert broken.verdict == "FAIL" and broken.advice


def test_one_initial_state_for_all_seeds_is_a_note() -> None:
    assert run("seeded reset", "variety").verdict == "note"


def test_seeds_as_large_as_in_control_jobs_are_tried() -> None:
    assert run("restore by seed", "large seeds").verdict == "ok"
    with pytest.raises(ValueError, match="Seed must be between"):
        run("seeded reset", "large seeds")


def test_chunks_in_another_process_equal_single_steps() -> None:
    assert run("chunks", "").verdict == run("pickling", "").verdict == "ok"


def test_discrete_actions_are_noted_and_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert show("CartPole-v1", []) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "spaces" in line]
    assert line.startswith("note  spaces             actions Discrete(2); observes state (4,)")


def test_the_exit_code_is_1_if_a_check_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = {name: CHECKS[name] for name in ("seeded reset", "determinism")}
    monkeypatch.setattr("embodyflow.cli.environments.check_env.CHECKS", chosen)
    identity = f"{__name__}:tests/Point-v0"
    assert show(identity, []) == 0
    assert show(identity, ["kwargs.breaks=determinism"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line[:5].strip() for line in lines] == ["ok", "ok", "ok", "FAIL"]
    assert "→ look for draws from random or numpy.random" in lines[-1]


@pytest.mark.parametrize(
    ("env_id", "words", "message"),
    [
        ("Mars-v0", [], "env.id=Mars-v0: Environment `Mars` doesn't exist"),
        ("Reacher-v5", ["fast"], "fast: must be of the form key=value"),
        ("Reacher-v5", ["speed=3"], "env.speed: no such key; did you mean"),
        ("Reacher-v5", ["kwargs.speed=3"], r"env.kwargs=\{'speed': 3\}: .*unexpected keyword argument 'speed'"),
    ],
)
def test_an_environment_that_cannot_be_checked_is_one_line(env_id: str, words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        show(env_id, words)


POINT = f"{__name__}:tests/Point-v0"


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        (POINT, ["kwargs.breaks=leak", "adapter.success_reward=2", "max_steps=30"]),
        (POINT, ["+env.kwargs.breaks=leak", "env.adapter.success_reward=2", "env.max_steps=30"]),
        (None, [f"env.id={POINT}", "env.kwargs={breaks:leak}", "env.adapter={success_reward:2}", "env.max_steps=30"]),
        (None, [f"id={POINT}", "++env.kwargs.breaks=leak", "env.adapter.success_reward=2", "env.max_steps=30"]),
    ],
)
def test_words_are_those_of_a_run_and_env_may_be_left_out(env_id: str | None, words: list[str]) -> None:
    config = configuration(env_id, words)
    assert (config.id, config.tasks, config.max_steps) == (POINT, ("do it",), 30)
    assert config.kwargs == {"breaks": "leak"} and config.adapter is not None and config.adapter.success_reward == 2


def test_an_experiment_or_an_environments_file_is_checked_as_a_run_has_it() -> None:
    push = configuration(None, ["experiment=push"])
    assert push == compose_config(["experiment=push"]).env
    changed = ["experiment=push", "env.tasks=[door-open-v3]", "env.max_steps=40"]
    assert configuration(None, changed) == compose_config(changed).env
    assert configuration(None, ["env=reacher"]).id == configuration(None, ["experiment=reacher"]).id == "Reacher-v5"
    assert configuration("Pusher-v5", ["experiment=reacher"]).id == "Pusher-v5"
    assert configuration("Reacher-v5", []).max_steps == 200 and configuration("Reacher-v5", []).tasks == ()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["env.max_steps=3"], "check-env: must name an environment by its id, env.id=…, env=… or experiment=…"),
        (["experiment=math"], "experiment=math: job=language has no env"),
        (["experiment=puhs"], "experiment=puhs: allowed are "),
        (["env=nowhere"], "env=nowhere: allowed are "),
        (["id=Reacher-v5", "trainer.epochz=3"], "trainer.epochz=3: no such key; did you mean trainer.epochs"),
        (["id=Reacher-v5", "env.maxsteps=3"], "env.maxsteps=3: no such key; did you mean env.max_steps"),
        (["id=Reacher-v5", "env.kwargs.size=3"], "env.kwargs.size=3: no such key; write +env.kwargs.size=… to add it"),
    ],
)
def test_a_mistake_in_the_words_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith(message)


class Unseen(Point):
    """A variant without rendering, for the reason in ``breaks``."""

    def __init__(self, breaks: str = "", render_mode: str | None = None) -> None:
        if breaks == "mode" and render_mode is not None:
            raise ValueError("render_mode: none is known")
        if breaks == "package" and render_mode is not None:
            raise gym.error.DependencyNotInstalled("pygame is not installed\nsecond line")
        super().__init__(breaks, render_mode)

    def render(self) -> Any:
        if self.breaks == "nothing":
            return None
        raise NotImplementedError


gym.register("tests/Unseen-v0", Unseen, disable_env_checker=True)


@pytest.mark.parametrize("reason", ["mode", "package", "nothing", "not implemented"])
def test_an_environment_without_rendering_passes_with_a_note(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embodyflow.cli.environments.env_checks.rendering_problem", lambda: None)
    config = EnvConfig(id=f"{__name__}:tests/Unseen-v0", tasks=(), kwargs={"breaks": reason}, max_steps=30)
    finding = CHECKS["render"](Subject(config))
    assert finding.verdict == "note" and finding.details.startswith("cannot render: ") and "\n" not in finding.details


INF, LARGEST = np.inf, float(np.finfo(np.float32).max)


@pytest.mark.parametrize(
    ("low", "high", "words", "bounded"),
    [
        ([-1, -2], [1, 3], "(2,) bounded by [-2, 3]", True),
        ([-INF, -INF], [INF, INF], "(2,) unbounded", False),
        ([0, 0], [INF, INF], "(2,) half-bounded (below)", False),
        ([-INF, -INF], [0, 1], "(2,) half-bounded (above)", False),
        (
            [-1, 0, -INF, -INF],
            [1, INF, 2, INF],
            "(4,) 1 bounded, 1 half-bounded (below), 1 half-bounded (above), 1 unb",
            False,
        ),
        ([-LARGEST, -1], [LARGEST, 1], "(2,) 1 bounded, 1 unbounded", False),
    ],
)
def test_kinds_of_boxes_are_told_apart(low: list[float], high: list[float], words: str, bounded: bool) -> None:
    space = Box(np.array(low, np.float32), np.array(high, np.float32))
    assert describe_space(space).startswith(words) and is_bounded(space) is bounded


def test_the_environments_own_spaces_are_described_within_the_adapter() -> None:
    config = EnvConfig.model_validate(
        {"id": "Pendulum-v1", "tasks": ["go"], "max_steps": 30, "adapter": {"success_reward": 0}}
    )
    finding = CHECKS["spaces"](Subject(config))
    assert (finding.verdict, finding.details) == (
        "ok",
        "actions (1,) bounded by [-2, 2]; observes state (3,) bounded by [-8, 8]",
    )


def test_a_key_of_success_that_never_exists_is_a_note() -> None:
    adapter = {"success_info": "metrics.success", "success_absent": "not_yet"}
    values = {"id": "Pendulum-v1", "tasks": ["go"], "max_steps": 50, "adapter": adapter}
    finding = CHECKS["success"](Subject(EnvConfig.model_validate(values)))
    assert (finding.verdict, finding.details) == ("note", "info had 'metrics.success' in 0 of 40 steps")


@pytest.mark.parametrize(
    ("name", "wrappers", "key"),
    [
        ("Restored", ["gymnasium.wrappers:NormalizeReward"], "env.adapter.wrappers=gymnasium.wrappers:NormalizeReward"),
        ("OwnScene", [], "env.id=unrestorable_envs:OwnScene-v0"),
    ],
)
def test_a_task_that_is_not_restored_names_what_to_change(name: str, wrappers: list[str], key: str) -> None:
    adapter = {"success_info": "success", "wrappers": wrappers}
    values = {"id": f"unrestorable_envs:{name}-v0", "tasks": ["go"], "max_steps": 50, "adapter": adapter}
    finding = CHECKS["restore by seed"](Subject(EnvConfig.model_validate(values)))
    assert finding.verdict == "FAIL" and finding.details.startswith(f"go: {key}: ") and finding.advice


def test_a_batch_has_checks_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["max_steps=20", "vector.mode=entry_point"]
    assert show("point_masses:tests/PointsOnly-v0", words) == 0
    verdicts = {line[6:24].strip(): line[:5].strip() for line in capsys.readouterr().out.splitlines()}
    assert verdicts == {"spaces": "ok", "resets": "ok", "restore by seed": "ok", "speed": "ok"}
    assert show("CartPole-v1", [*words, "vector.resets=automatic"]) == 0
    assert "from one seed; the step after an end is no transition\n" in capsys.readouterr().out
    assert show("odd_batches:OneSeed-v0", words) == 1
    assert "FAIL  restore by seed    env.vector.resets=seeded: in a lane that is reset alone" in capsys.readouterr().out
