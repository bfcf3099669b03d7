"""Small goal environments with the interface of Gymnasium-Robotics: a point that reaches a goal, and faulty ones."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict

Array = np.ndarray[Any, Any]
REACH = 0.1


class Reaching(gym.Env[Any, Any]):
    """A point in the plane starts at the origin; the reward of a step is 0 within ``REACH`` of the goal, else -1."""

    action_space = Box(-1.0, 1.0, (2,), np.float32)
    observation_space = Dict({name: Box(-9, 9, (2,)) for name in ("observation", "achieved_goal", "desired_goal")})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        angle = self.np_random.uniform(0, 2 * np.pi)
        self._goal, self._place = 0.8 * np.array([np.cos(angle), np.sin(angle)]), np.zeros(2)
        return self._observation(), {}

    def step(self, action: Array) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._place = np.clip(self._place + 0.15 * np.asarray(action, np.float64), -1, 1)
        reward = self.compute_reward(self._place, self._goal, {})
        return self._observation(), reward, False, False, {"is_success": reward == 0}

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Any:
        return -(np.linalg.norm(achieved_goal - desired_goal, axis=-1) > REACH).astype(np.float32)

    def _observation(self) -> dict[str, Array]:
        place, goal = self._place.astype(np.float32), self._goal.astype(np.float32)
        return {"observation": place, "achieved_goal": place, "desired_goal": goal}


class Ending(Reaching):
    """Says for one step whether it ends an episode, as Gymnasium-Robotics' environments do."""

    def compute_terminated(self, achieved_goal: Array, desired_goal: Array, info: Any) -> bool:
        assert achieved_goal.shape == (2,)
        return bool(np.linalg.norm(achieved_goal - desired_goal) <= REACH)

    def step(self, action: Array) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, self.compute_terminated(self._place, self._goal, {}), truncated, info


class LastStepCounts(Reaching):
    """Reports success in the fifth step if the goal is on the right, and in the steps before if it is on the left."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Array) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._steps += 1
        is_success = np.float32((self._steps == 5) == (self._goal[0] > 0))
        return *super().step(action)[:4], {"is_success": is_success}  # type: ignore[return-value]


class SuccessInParts(Reaching):
    """Observes its place alone, and tells how much of the way is done as ``success``."""

    observation_space = Box(-9, 9, (2,))  # type: ignore[assignment]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, _ = super().reset(seed=seed, options=options)
        return observation["observation"], {"success": 0.3}

    def step(self, action: Array) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, *_ = super().step(action)
        return observation["observation"], reward, False, False, {"success": 0.3}


class WithoutReward(Reaching):
    compute_reward = property()  # type: ignore[assignment]  # raises AttributeError

    def step(self, action: Array) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return self._observation(), 0.0, False, False, {}


class OneByOne(Reaching):
    """Does not take several steps at once."""

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Any:
        return np.float32(-float(np.linalg.norm(achieved_goal - desired_goal) > REACH))


class Mixing(Reaching):
    """Gives a goal another reward among others than alone."""

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Any:
        distance = np.linalg.norm(achieved_goal - desired_goal, axis=-1)
        return distance - np.mean(distance)


class OtherReward(Reaching):
    """Has steps with another reward than that of ``compute_reward``."""

    def step(self, action: Array) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, *flags, info = super().step(action)
        return observation, reward - 0.5, flags[0], flags[1], info


class ReadingInfo(Reaching):
    """Needs the info of a step."""

    def step(self, action: Array) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return self._observation(), -1.0, False, False, {}

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Any:
        return np.array([each["force"] for each in info])


class OfTwoSizes(Reaching):
    observation_space = Dict({**Reaching.observation_space.spaces, "achieved_goal": Box(-9, 9, (1,))})

    def _observation(self) -> dict[str, Array]:
        return {**super()._observation(), "achieved_goal": np.zeros(1, np.float32)}


for kind in (
    Reaching,
    Ending,
    LastStepCounts,
    SuccessInParts,
    WithoutReward,
    OneByOne,
    Mixing,
    OtherReward,
    ReadingInfo,
    OfTwoSizes,
):
    gym.register(f"{kind.__name__}-v0", kind)
