"""Environments whose seed does not restore an episode, each for another reason, and one that restores everything."""

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box


class Restored(gym.Env[np.ndarray, np.ndarray]):
    """A point on a line. Its reward is 0 until it passes 1, as in most tasks with sparse success."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 Gymnasium's own
    observation_space: gym.Space[Any] = Box(-np.inf, np.inf, (2,), np.float32)
    action_space: gym.Space[Any] = Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.x, self.t = float(self.np_random.uniform(-0.5, 0.5)), 0
        return self.observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.x, self.t = self.x + 0.05 * float(action[0]), self.t + 1
        return self.observe(), float(self.x > 1), False, False, {"success": self.x > 1}

    def observe(self) -> np.ndarray:
        return np.array([self.x, self.t], np.float32)


class GlobalStart(Restored):
    """An environment that draws its initial state from NumPy's global generator."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.x = float(np.random.uniform(-0.5, 0.5))
        return self.observe(), {}


class GlobalSteps(Restored):
    """An environment whose steps, but not its initial state, have noise without a seed."""

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.x += float(np.random.default_rng().normal(0, 0.01))
        return super().step(action)


class SeedsGlobally(Restored):
    """An environment whose reset seeds NumPy's global generator, from which its steps draw."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        np.random.seed(seed)
        return super().reset(seed=seed)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.x += float(np.random.normal(0, 0.01))
        return super().step(action)


class SharedScene(Restored):
    """An environment that keeps its state in its class, as clients of one simulator in a process do."""

    scene: ClassVar[dict[str, float]] = {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.scene["x"] = self.x
        return self.observe(), {}

    def observe(self) -> np.ndarray:
        return np.array([self.scene.get("x", self.x), self.t], np.float32)


class LateNoise(Restored):
    """An environment with noise in the reward of the tenth step only."""

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, reward, *rest = super().step(action)
        return observation, reward + (np.random.default_rng().random() if self.t == 10 else 0.0), *rest


class Curriculum(Restored):
    """An environment that starts farther away after each episode."""

    episodes = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.episodes += 1
        self.x -= 0.01 * self.episodes
        return self.observe(), {}


class AfterEnd(Restored):
    """An environment that starts elsewhere once it has played an episode of a hundred steps."""

    ended = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.ended |= getattr(self, "t", 0) >= 100
        super().reset(seed=seed)
        self.x += float(self.ended)
        return self.observe(), {}


class OwnScene(Restored):
    """An environment whose instances differ from each other, because they are built from an unseeded draw."""

    def __init__(self) -> None:
        self.offset = float(np.random.default_rng().random())

    def observe(self) -> np.ndarray:
        return np.array([self.x + self.offset, self.t], np.float32)


class NaNReward(Restored):
    """An environment whose reward is NaN in every step."""

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, _, *rest = super().step(action)
        return observation, float("nan"), *rest


class Raises(Restored):
    """An environment that raises in its third step."""

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.t == 2:
            raise ZeroDivisionError("the gripper has no mass")
        return super().step(action)


class OftenSilent(Restored):
    """An environment that reports its success in the first step, and then only every tenth."""

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        *rest, info = super().step(action)
        return *rest, info if self.t % 10 == 1 else {}


def frozen_statistics(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Normalize observations by statistics that stay as they are."""
    wrapped = gym.wrappers.NormalizeObservation(env)
    wrapped.update_running_mean = False
    return wrapped


class Counted(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper that adds the number of episodes so far to every reward."""

    episodes = 0

    def reset(self, **arguments: Any) -> Any:
        self.episodes += 1
        return super().reset(**arguments)

    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, float(reward) + self.episodes, *rest


def chosen(kind: str = "Restored") -> gym.Env[Any, Any]:
    """Make one of these environments, so that tasks can differ in it."""
    return gym.make(f"{kind}-v0").unwrapped


gym.register("Chosen-v0", chosen, disable_env_checker=True)
for kind in (
    Restored,
    GlobalStart,
    GlobalSteps,
    SeedsGlobally,
    SharedScene,
    LateNoise,
    Curriculum,
    AfterEnd,
    OwnScene,
    NaNReward,
    Raises,
    OftenSilent,
):
    gym.register(f"{kind.__name__}-v0", kind, disable_env_checker=True)
