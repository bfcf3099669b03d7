"""Several kinds of environments in one run: states and actions are padded to one size."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict
from numpy.typing import NDArray

from embodyflow.errors import ConfigError
from embodyflow.policies.env_match import has_finite_width, one_line
from embodyflow.policies.observations import MEMBER_KEY, STATE_KEY, entries_of, fitted, observation_fields

Fields = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]


@contextmanager
def naming_member(name: str) -> Iterator[None]:
    """Begin the message of a :class:`ConfigError` in the block with the key of a member; not if its name is empty."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"env.members.{name}: {error}" if name else str(error)) from error


@dataclass(frozen=True)
class MemberSizes:
    """Sizes of one kind of environment.

    Attributes:
        state_dim: Features of its state; 0 if it shows images alone.
        action_dim: Dimensions of its actions.
        images: Shape and dtype of its images by name.
    """

    state_dim: int
    action_dim: int
    images: Fields

    @classmethod
    def of(cls, env: gym.Env[Any, Any]) -> "MemberSizes":
        """Return the sizes of an environment.

        Raises:
            ConfigError: Its actions or an observation cannot be padded.
        """
        space = env.action_space
        if not isinstance(space, Box) or len(space.shape) != 1 or not np.issubdtype(space.dtype, np.floating):
            raise ConfigError(f"actions must be a one-dimensional Box of floats to be padded, not {one_line(space)}")
        if not has_finite_width(space):
            raise ConfigError(f"actions must have finite bounds to be scaled to [-1, 1], not {one_line(space)}")
        fields = observation_fields(env.observation_space)
        images = {name: field for name, field in fields.items() if len(field[0]) == 3}
        for name, (shape, _) in fields.items():
            if name not in images and (name != STATE_KEY or len(shape) != 1):
                raise ConfigError(
                    f"the observation {name!r} in {shape} cannot be padded; allowed are images and {STATE_KEY!r} in "
                    "one dimension, which env.adapter.state joins from several"
                )
        return cls(fields[STATE_KEY][0][0] if STATE_KEY in fields else 0, space.shape[0], images)


@dataclass(frozen=True)
class Padding:
    """Sizes to which the members of a run are padded.

    Attributes:
        state_dim: Features of the largest state.
        action_dims: Dimensions of an action by member.
        images: Shape and dtype of the images that every member shows, by name.
    """

    state_dim: int
    action_dims: tuple[int, ...]
    images: Fields

    @classmethod
    def of(cls, sizes: Mapping[str, MemberSizes]) -> "Padding":
        """Return the padding of members by name.

        Raises:
            ConfigError: They show different images.
        """
        first, images = next((name, each.images) for name, each in sizes.items())
        for name, each in sizes.items():
            if each.images != images:
                raise ConfigError(
                    f"env.members.{name}: shows the images {_listed(each.images)}, env.members.{first} "
                    f"{_listed(images)}; all members must show the same"
                )
        dims = tuple(each.action_dim for each in sizes.values())
        return cls(max(each.state_dim for each in sizes.values()), dims, images)

    @property
    def action_dim(self) -> int:
        """Dimensions of the largest action."""
        return max(self.action_dims)


def _listed(images: Fields) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, (shape, _) in images.items()) or "none"


class MemberEnv(gym.Env[dict[str, NDArray[Any]], NDArray[np.float32]]):
    """An environment of a run with several kinds.

    The observation is a dict: ``state`` float32 ``[S]`` of the largest size, which ends in zeros, ``member`` int64
    ``[1]``, the index of the kind, and the images. Actions are float32 ``[A]`` in [-1, 1]. Those of the environment are
    the first ones, scaled to its bounds; the others have no effect.

    Args:
        inner: Environment with instruction, goals and success.
        index: Index of its kind.
        padding: Sizes of the run.
    """

    def __init__(self, inner: gym.Env[Any, Any], index: int, padding: Padding) -> None:
        own = inner.action_space
        assert isinstance(own, Box)
        self.inner, self._index, self._own = inner, np.array([index], np.int64), own
        self._is_unit = bool((own.low == -1).all() and (own.high == 1).all())
        self.metadata, self.render_mode = inner.metadata, inner.render_mode
        self.instruction, self.num_goals = inner.get_wrapper_attr("instruction"), inner.get_wrapper_attr("num_goals")
        self.action_space = Box(-1.0, 1.0, (padding.action_dim,), np.float32)
        spaces: dict[str, gym.Space[Any]] = {MEMBER_KEY: Box(0, len(padding.action_dims) - 1, (1,), np.int64)}
        if padding.state_dim:
            spaces[STATE_KEY] = Box(-np.inf, np.inf, (padding.state_dim,), np.float32)
        images = {name: inner.observation_space[name] for name in padding.images}  # type: ignore[index]
        self.observation_space: gym.Space[Any] = Dict(spaces | images)
        self._padding, self._state_field = padding, observation_fields(inner.observation_space).get(STATE_KEY)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Reset the environment."""
        super().reset(seed=seed)
        observation, info = self.inner.reset(seed=seed, options=options)
        return self._padded(observation), info

    def step(self, action: NDArray[np.float32]) -> tuple[dict[str, NDArray[Any]], float, bool, bool, dict[str, Any]]:
        """Execute one action, float32 ``[A]`` in [-1, 1].

        Raises:
            ValueError: The state does not fit its space; see :func:`~embodyflow.policies.observations.fitted`.
        """
        observation, reward, terminated, truncated, info = self.inner.step(self._to_own(action))
        return self._padded(observation), float(reward), terminated, truncated, info

    @property
    def expert_action(self) -> Callable[[], NDArray[np.float32]]:
        """Function without arguments that returns the expert's next action, float32 ``[A]``, padded with zeros.

        Raises:
            AttributeError: The environment has no expert.
        """
        expert: Any = self.inner.unwrapped
        ask = expert.expert_action
        return lambda: self._to_unit(np.asarray(ask()))

    def render(self) -> Any:
        """Return the environment's current frame."""
        return self.inner.render()

    def close(self) -> None:
        """Close the environment."""
        self.inner.close()

    def _padded(self, observation: Any) -> dict[str, NDArray[Any]]:
        entries = entries_of(observation)
        found: dict[str, NDArray[Any]] = {name: entries[name] for name in self._padding.images}
        found[MEMBER_KEY] = self._index
        if self._padding.state_dim:
            state = np.zeros(self._padding.state_dim, np.float32)
            if self._state_field is not None:  # padding would hide a state of another size
                own = fitted(STATE_KEY, entries[STATE_KEY], *self._state_field)
                state[: len(own)] = own
            found[STATE_KEY] = state
        return found

    def _to_own(self, action: NDArray[np.float32]) -> NDArray[Any]:
        """Return the environment's part of an action, scaled to its bounds; the clip corrects rounding."""
        chosen = np.asarray(action)[: self._own.shape[0]]
        if self._is_unit:
            return chosen.astype(self._own.dtype)
        low, high = self._bounds
        return np.clip(low + (chosen.astype(np.float64) + 1) / 2 * (high - low), low, high).astype(self._own.dtype)

    def _to_unit(self, own: NDArray[Any]) -> NDArray[np.float32]:
        """Return an action of the environment, scaled to [-1, 1] and padded with zeros.

        An action of another shape is returned as it is, for the caller to refuse.
        """
        if own.shape != self._own.shape:
            return own
        action = np.zeros(self._padding.action_dim, np.float32)
        if self._is_unit:
            action[: len(own)] = own
            return action
        low, high = self._bounds
        width = high - low
        # In a dimension of zero width every action is the same.
        action[: len(own)] = 2 * (np.clip(own, low, high) - low) / np.where(width > 0, width, 1.0) - 1
        return action

    @property
    def _bounds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return self._own.low.astype(np.float64), self._own.high.astype(np.float64)
