"""A Gymnasium environment of one episode, which is rebuilt and brought to the same state when it fails."""

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import gymnasium as gym

from embodyflow.agents.episode import Faults
from embodyflow.agents.gymnasium.text_spaces import TextSpaces
from embodyflow.agents.tools.tool_runner import in_thread
from embodyflow.config.agents.gymnasium_text import GymnasiumConfig
from embodyflow.errors import ConfigError, InfrastructureError

log = logging.getLogger(__name__)
T = TypeVar("T")


class EnvironmentFailedError(InfrastructureError):
    """An environment failed in all attempts, so the episode is drawn again; the message says what it raised."""


@dataclass(frozen=True)
class Step:
    """Outcome of a reset or a step.

    Attributes:
        text: Text of the observation.
        reward: Reward; 0 of a reset.
        terminated, truncated: End of the episode, as Gymnasium defines both.
    """

    text: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False


class TextEnvironment:
    """An environment that an agent plays by text.

    It keeps the actions. After a failure, a new environment is reset with the same seed and takes them again. It must
    then show the same as before.

    Args:
        config: Section ``rollout.agent.gymnasium``.
        seed: Seed of the reset.
        faults: Counts the attempts that failed.

    Raises:
        ConfigError: The environment cannot be built, or the configuration does not fit its spaces.
    """

    def __init__(self, config: GymnasiumConfig, seed: int, faults: Faults) -> None:
        self._config, self._seed, self._faults = config, seed, faults
        self.env = build_environment(config)
        self.spaces = TextSpaces(config, self.env.observation_space, self.env.action_space)
        self._actions: list[Any] = []
        self.steps: list[Step] = []
        """The reset and all steps so far."""

    @property
    def total_reward(self) -> float:
        """Sum of the rewards so far, not discounted."""
        return sum(step.reward for step in self.steps)

    @property
    def success(self) -> bool:
        """Verdict on the episode, as ``success`` defines it."""
        return self.total_reward > 0 if self._config.success == "reward" else self.steps[-1].terminated

    async def reset(self) -> Step:
        """Reset the environment with the seed.

        Raises:
            EnvironmentFailedError: It failed in all attempts.
        """
        return await self._try(self.reset_here)

    def reset_here(self) -> Step:
        """Reset the environment with the seed once, in the calling thread; what it raises is the environment's."""
        return _reset(self.env, self.spaces, self._seed)

    async def step(self, action: Any) -> Step:
        """Take an action.

        Raises:
            EnvironmentFailedError: The environment failed in all attempts.
        """
        number = len(self.steps)
        step = await self._try(lambda: _step(self.env, self.spaces, action, number))
        self._actions.append(action)
        return step

    def close(self) -> None:
        """Close the environment; a failure is logged, because the episode has its result."""
        try:
            self.env.close()
        except Exception as error:
            log.warning("environment %s cannot be closed: %s: %s", self._config.id, type(error).__name__, error)

    async def _try(self, act: Callable[[], Step]) -> Step:
        """Call ``act`` until it succeeds; before each further attempt bring a new environment to the same state."""
        reason = ""
        for attempt in range(self._config.retries + 1):
            try:
                if attempt:
                    await self._rebuild()
                step = await self._limited(act)
                self.steps.append(step)
                return step
            except NotRepeatableError:
                raise
            except Exception as error:
                limit = f" (step_timeout={self._config.step_timeout:g})" if isinstance(error, TimeoutError) else ""
                reason = f"{type(error).__name__}: {error}{limit}"
                self._faults.retries += attempt < self._config.retries
                log.warning("environment %s failed in attempt %d: %s", self._config.id, attempt + 1, reason)
        raise EnvironmentFailedError(f"environment {self._config.id}, seed {self._seed}: {reason}")

    async def _rebuild(self) -> None:
        """Replace the environment by a new one in the same state.

        Raises:
            NotRepeatableError: The same seed and actions lead to something else.
        """
        self.close()
        self.env = build_environment(self._config)
        for number, before in enumerate(self.steps):
            if number == 0:
                again = await self._limited(lambda: _reset(self.env, self.spaces, self._seed))
            else:
                action, place = self._actions[number - 1], number
                again = await self._limited(lambda: _step(self.env, self.spaces, action, place))  # noqa: B023
            if again != before:
                raise NotRepeatableError(
                    f"environment {self._config.id}, seed {self._seed}: step {number} gave {again} after a failure and "
                    f"{before} before; it must depend on its seed and actions alone"
                )

    async def _limited(self, act: Callable[[], T]) -> T:
        async with asyncio.timeout(self._config.step_timeout):
            return await in_thread(act, {})


class NotRepeatableError(RuntimeError):
    """An environment shows something else for the same seed and actions, so the run cannot be repeated."""


def build_environment(config: GymnasiumConfig) -> gym.Env[Any, Any]:
    """Build an environment.

    Raises:
        ConfigError: It is not registered, its package is not installed, or it cannot be built.
    """
    key = f"rollout.agent.gymnasium.id={config.id}"
    try:
        return gym.make(config.id, disable_env_checker=True, **config.kwargs)  # it warns in each of many episodes
    except ImportError as error:
        line = str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(".")
        raise ConfigError(f"{key}: {line}; install the environment's package, such as the extra envs") from error
    except gym.error.Error as error:
        raise ConfigError(f"{key}: {str(error).strip().partition(chr(10))[0]}") from error
    except Exception as error:  # a constructor may raise anything; it is reported in one line
        line = str(error).strip().partition("\n")[0]
        raise ConfigError(f"{key}: cannot be built: {type(error).__name__}: {line}") from error


def _reset(env: gym.Env[Any, Any], spaces: TextSpaces, seed: int) -> Step:
    observation, _ = env.reset(seed=seed)
    return Step(spaces.observation(observation, 0))


def _step(env: gym.Env[Any, Any], spaces: TextSpaces, action: Any, number: int) -> Step:
    observation, reward, terminated, truncated, _ = env.step(action)
    if not math.isfinite(reward):
        raise ValueError(f"the reward of step {number} is {reward}; allowed are finite numbers")
    return Step(spaces.observation(observation, number), float(reward), bool(terminated), bool(truncated))
