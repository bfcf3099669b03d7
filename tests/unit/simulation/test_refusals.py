"""Environments that cannot be used as they are: one line that names the key and the remedy, without a traceback."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict
from refusals import refusal

from embodyflow.cli.main import main
from embodyflow.config.composition.compose import compose_config

SIZES = ("policy.state_dim=null", "policy.action_dim=null")
EMBODIED = ("experiment=embodied", "env.tasks=[go]", "env.adapter.success_termination=true", "warm_start=null", *SIZES)
CONTROL = ("experiment=reacher", *SIZES)
INSTALL = 'Box2D is not installed, run `pip install "gymnasium[box2d]"`'


class Needy(gym.Env[Any, Any]):
    """An environment that misses its package when it is made, reset or stepped."""

    observation_space = Box(-1.0, 1.0, (2,), np.float32)
    action_space = Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, at: str, error: str = "dependency") -> None:
        self.at = at
        kinds: dict[str, Exception] = {
            "dependency": gym.error.DependencyNotInstalled(f"{INSTALL}\nand a second line"),
            "import": ModuleNotFoundError("No module named 'Box2D'"),
        }
        self.error = kinds[error]
        self._miss("init")

    def _miss(self, here: str) -> None:
        if here == self.at:
            raise self.error

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._miss("reset")
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self._miss("step")
        return np.zeros(2, np.float32), 0.0, False, False, {}


gym.register("tests/Needy-v0", Needy, disable_env_checker=True)
gym.register("tests/NeedyModule-v0", "needy_env:Anything", disable_env_checker=True)


@pytest.mark.parametrize("job", [EMBODIED, CONTROL], ids=["embodied", "control"])
@pytest.mark.parametrize("at", ["init", "reset", "step"])
@pytest.mark.parametrize(
    ("error", "message"),
    [("dependency", INSTALL), ("import", "No module named 'Box2D'; install the missing packages")],
)
def test_a_missing_package_of_an_environment_is_one_line(
    job: tuple[str, ...], at: str, error: str, message: str
) -> None:
    words = (*job, f"env.id={__name__}:tests/Needy-v0", f"env.kwargs={{at:{at},error:{error}}}")
    assert refusal(*words) == f"env.id={__name__}:tests/Needy-v0: {message}"


@pytest.mark.parametrize("job", [EMBODIED, CONTROL], ids=["embodied", "control"])
def test_a_missing_package_of_an_environments_module_is_one_line(job: tuple[str, ...]) -> None:
    message = refusal(*job, f"env.id={__name__}:tests/NeedyModule-v0")
    assert message == (
        f"env.id={__name__}:tests/NeedyModule-v0: No module named 'a_package_nobody_has'; install the missing packages"
    )


@pytest.mark.parametrize("name", ["Needy-v0 kwargs.at=init", "Needy-v0 kwargs.at=step", "NeedyModule-v0"])
def test_check_env_reports_a_missing_package_in_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", *f"{__name__}:tests/{name}".split()]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith(f"env.id={__name__}:tests/Needy") and "install" in lines[0]


def test_a_missing_package_of_a_wrapper_names_the_wrapper() -> None:
    message = refusal(*CONTROL, "env.id=Pendulum-v1", f"env.adapter.wrappers=[{__name__}:needing]")
    assert message == f"env.adapter.wrappers={__name__}:needing: {INSTALL}"


def needing(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    raise gym.error.DependencyNotInstalled(INSTALL)


class Keyed(gym.Env[Any, Any]):
    """An environment that observes a dict without a state, as goal environments do."""

    observation_space = Dict(
        achieved_goal=Box(-1.0, 1.0, (3,), np.float64),
        desired_goal=Box(-1.0, 1.0, (3,), np.float64),
        observation=Box(-1.0, 1.0, (10,), np.float64),
    )
    action_space = Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        return self.observe(), 0.0, False, False, {}

    def observe(self) -> Any:
        return {name: np.zeros(space.shape) for name, space in self.observation_space.items()}


gym.register("tests/Keyed-v0", Keyed, disable_env_checker=True)


@pytest.mark.parametrize("size", ["null", "16"])
def test_a_dict_of_observations_in_a_control_job_names_its_keys_and_both_remedies(size: str) -> None:
    words = (*CONTROL, f"env.id={__name__}:tests/Keyed-v0", f"policy.state_dim={size}")
    assert refusal(*words) == (
        "policy.state_dim: the environment has no 'state', it observes achieved_goal, desired_goal, observation; "
        "choose some by env.adapter.state=[achieved_goal,desired_goal], or flatten all of them by "
        "env.adapter.wrappers=[gymnasium.wrappers:FlattenObservation]"
    )


@pytest.mark.parametrize(
    ("remedy", "size"),
    [
        ("env.adapter.state=[observation,desired_goal]", 13),
        ("env.adapter.wrappers=[gymnasium.wrappers:FlattenObservation]", 16),
    ],
)
def test_the_remedies_for_a_dict_work(remedy: str, size: int) -> None:
    assert compose_config([*CONTROL, f"env.id={__name__}:tests/Keyed-v0", remedy]).policy.state_dim == size


class Unbounded(gym.Env[Any, Any]):
    """An environment whose actions have no bounds that anybody knows."""

    observation_space = Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, largest: float = np.inf) -> None:
        self.action_space = Box(-largest, largest, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 0.0, False, False, {}


gym.register("tests/Unbounded-v0", Unbounded, disable_env_checker=True)


@pytest.mark.parametrize(
    ("words", "bounds"), [((), "-inf, inf"), (("+env.kwargs.largest=3.4e38",), "-3.4e+38, 3.4e+38")]
)
def test_actions_without_bounds_are_refused_off_policy_alone(words: tuple[str, ...], bounds: str) -> None:
    """Its actions, in [-1, 1], would be stretched to NaN or to the largest numbers of float32."""
    env_id = f"env.id={__name__}:tests/Unbounded-v0"
    assert refusal("experiment=pendulum", *SIZES, env_id, *words) == (
        f"policy.name=mlp_squashed: acts in [-1, 1], stretched to the environment's bounds, which are [{bounds}]; "
        "allowed are finite ones, which a wrapper can set"
    )
    compose_config([*CONTROL, env_id, *words])
