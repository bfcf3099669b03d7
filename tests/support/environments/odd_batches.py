"""Batches that cannot be used as they are, each for another reason."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode
from point_masses import Array, PointMasses


class ForgetsMasks(PointMasses):
    """A batch whose resets are always those of all lanes."""

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        return super().reset(seed=seed)


class OneSeed(PointMasses):
    """A batch that draws all lanes from one generator, seeded by the first seed."""

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        first = seed[0] if isinstance(seed, list) else seed
        if first is not None:
            self._shared = np.random.default_rng(first)
        self._generators = [self._shared] * self.num_envs
        return super().reset(seed=None, options=options)


class WholeSeeds(PointMasses):
    """A batch that takes a number as its seed, and no list."""

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        if isinstance(seed, list):
            raise TypeError("the seed must be a number")
        return super().reset(seed=seed, options=options)


class Unseeded(PointMasses):
    """A batch that ignores seeds."""

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        return super().reset(seed=None, options=options)


class Resets(PointMasses):
    """A batch whose automatic resets draw from NumPy's global generator."""

    _asked = False

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        self._asked = True
        given = super().reset(seed=seed, options=options)
        self._asked = False
        return given

    def _begin(self, lanes: Array) -> None:
        super()._begin(lanes)
        if not self._asked:
            self.x[lanes] = np.random.uniform(-1, 1, len(lanes))


class ResetsTwice(PointMasses):
    """A batch in the mode NextStep whose masked reset does not stand in for the automatic one, which follows."""

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        over = self._over.copy()
        given = super().reset(seed=seed, options=options)
        self._over = over & bool(options)
        return given


class Eight(PointMasses):
    """A batch of eight lanes, whatever is asked for."""

    def __init__(self, num_envs: int, **kwargs: Any) -> None:
        super().__init__(8, **kwargs)


class NoMode(PointMasses):
    """A batch that does not say how it resets itself."""

    def __init__(self, num_envs: int, **kwargs: Any) -> None:
        super().__init__(num_envs, **kwargs)
        self.metadata = {}


class WrongShape(PointMasses):
    """A batch whose observations lack an entry."""

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        return observation[:, :1], info


class NoFinal(PointMasses):
    """A batch that resets itself in the same step and does not tell the last observation."""

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        return *super().step(actions)[:4], {}


class SaysNextStep(PointMasses):
    """A batch that resets itself in the step of an end and says that it does so in the next one.

    Args:
        tells: Whether it tells the last observation.
    """

    def __init__(self, num_envs: int, says: str = "NextStep", tells: bool = True, **kwargs: Any) -> None:
        super().__init__(num_envs, autoreset="SameStep", **kwargs)
        self.metadata, self._tells = {"autoreset_mode": AutoresetMode(says)}, tells

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        *answers, infos = super().step(actions)
        return *answers, infos if self._tells else {}  # type: ignore[return-value]


class NeverResets(PointMasses):
    """A batch that says that it resets itself in the next step, and plays on after an end."""

    def __init__(self, num_envs: int, **kwargs: Any) -> None:
        super().__init__(num_envs, autoreset="Disabled", **kwargs)
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        self._over[:] = False
        return super().step(actions)


class ReusesFinal(PointMasses):
    """A batch whose last observation of an episode is an array that the reset has overwritten."""

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        observation, *answers, infos = super().step(actions)
        return observation, *answers, infos | {"final_obs": observation} if infos else {}  # type: ignore[return-value]


class MasksFinal(PointMasses):
    """A batch whose infos say that they have no last observation."""

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        *answers, infos = super().step(actions)
        return *answers, infos | {"_final_obs": np.zeros(self.num_envs, bool)} if infos else {}  # type: ignore[return-value]


class ShortFinal(PointMasses):
    """A batch whose last observations lack an entry, which NumPy would repeat over the others."""

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        *answers, infos = super().step(actions)
        return *answers, infos | {"final_obs": infos["final_obs"][:, :1]} if infos else {}  # type: ignore[return-value]


class FloatFlags(PointMasses):
    """A batch whose flags are the probability of an end."""

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        observation, reward, terminated, truncated, infos = super().step(actions)
        return observation, reward, terminated + 0.5, truncated, infos


class WideNumbers(PointMasses):
    """A batch whose integers wrap in the dtype of their space."""

    def __init__(self, num_envs: int, **kwargs: Any) -> None:
        super().__init__(num_envs, **kwargs)
        self.single_observation_space = Box(-(2**15), 2**15 - 1, (2,), np.int16)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        return np.full(observation.shape, 70000), info


KINDS = (ResetsTwice, ForgetsMasks, OneSeed, WholeSeeds, Unseeded, Resets, Eight, NoMode, WrongShape, NoFinal)
LIARS = (SaysNextStep, NeverResets, ReusesFinal, MasksFinal, ShortFinal, FloatFlags, WideNumbers)
for kind in KINDS + LIARS:
    gym.register(
        f"{kind.__name__}-v0",
        vector_entry_point=f"{__name__}:{kind.__name__}",
        max_episode_steps=20,
    )
