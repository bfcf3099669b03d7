"""An adapter that gives any Gymnasium environment an instruction, numbered initial states and a definition of success.

A policy that follows instructions needs more than Gymnasium provides: an instruction, groups of episodes from one
initial state, separate initial states for evaluation, and the success of an episode. :class:`AdaptedEnv` adds these to
an environment as its configuration describes.
"""

import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict
from gymnasium.utils import seeding
from numpy.typing import NDArray
from PIL import Image

from embodyflow.environments.action_scale import ActionScale
from embodyflow.environments.choices import check_choice
from embodyflow.environments.goals import choose_goal

RENDER = "render"
"""Source of images that come from the environment's ``render()``."""

FIRST_SEED: Mapping[str, int] = MappingProxyType({"train": 0, "demo": 2**24, "eval": 2**25})
"""Seed of initial state 0 by split; the splits' ranges are disjoint."""

Observation = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Adaptation:
    """What a third-party environment does not say about itself.

    Attributes:
        wrappers: ``module:function`` of environment to environment, applied in this order.
        instruction: The task in a sentence; ``None`` is the task's name.
        success_info: Key of ``info`` that is true in the step that succeeds, with dots for nested ones.
        success_absent: Meaning of a step whose ``info`` lacks that key: ``refuse`` raises, ``not_yet`` is no success.
        success_reward: Smallest reward of a step that succeeds.
        success_termination: Whether a terminated episode is a success.
        state: Keys of the observation that make the state, with dots for nested ones; ``None`` takes all that are not
            images.
        images: Keys of the observation by image name, or :data:`RENDER`.
        image_size: Side in pixels that images are resized to; ``None`` leaves them as they are.
        expert: ``module:function`` of the environment and its own observation to an action within the environment's
            own bounds.
    """

    wrappers: Sequence[str] = ()
    instruction: str | None = None
    success_info: str | None = None
    success_absent: Literal["refuse", "not_yet"] = "refuse"
    success_reward: float | None = None
    success_termination: bool = False
    state: Sequence[str] | None = None
    images: Mapping[str, str] = field(default_factory=dict)
    image_size: int | None = None
    expert: str | None = None


class AdaptedEnv(gym.Env[Observation, NDArray[np.float32]]):
    """A third-party environment with the interface of :class:`embodyflow.environments.metaworld.MetaWorldEnv`.

    The observation is a dict: ``state`` float32 ``[S]``, a concatenation of chosen entries of the environment's own
    observation, and every entry of ``images``, uint8 ``[H, W, 3]``. Actions are float32 ``[A]`` in [-1, 1], scaled to
    the environment's bounds; discrete ones are the environment's own. Initial state ``g`` of a split is
    ``reset(seed=FIRST_SEED[split] + g)``. An episode is *terminated* by success or by the environment, and *truncated*
    by the environment or after ``max_steps``. ``info`` has ``success`` (bool), ``instruction`` (str) and ``goal``
    (int).

    Args:
        env_id: Gymnasium id of the environment, ``module:id`` if a module registers it.
        task: Name of the task.
        split: Split of the initial states that ``reset`` plays.
        max_steps: Steps after which an episode is truncated; ``None`` leaves it to the environment.
        kwargs: Arguments of ``gymnasium.make``.
        adaptation: Fields of :class:`Adaptation`.
        render_mode: ``None`` or ``"rgb_array"``, for :meth:`render`.

    Attributes:
        num_goals: Number of initial states by split.
        instruction: Instruction of the task in English.
        state_slices: Place in the state of each entry of the environment's own observation, by its key.

    Raises:
        ValueError: An argument does not fit the environment; the message names it and what is allowed.
        ImportError: A wrapper or the expert cannot be imported.
    """

    num_goals: Mapping[str, int] = MappingProxyType({"train": 2**16, "demo": 2**10, "eval": 2**10})
    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012 Gymnasium's own

    def __init__(
        self,
        env_id: str,
        task: str = "",
        split: Literal["train", "demo", "eval"] = "train",
        max_steps: int | None = None,
        *,
        kwargs: Mapping[str, Any] | None = None,
        adaptation: Mapping[str, Any] | None = None,
        render_mode: str | None = None,
    ) -> None:
        check_choice("split", split, FIRST_SEED)
        settings = Adaptation(**(adaptation or {}))
        self.task, self.split, self.instruction = task, split, settings.instruction or task
        self.render_mode, self._images, self._image_size = render_mode, dict(settings.images), settings.image_size
        draws = render_mode == "rgb_array" or RENDER in self._images.values()
        arguments: dict[str, Any] = {**(kwargs or {}), "max_episode_steps": max_steps, "disable_env_checker": True}
        if draws:
            arguments["render_mode"] = "rgb_array"
        self.inner: gym.Env[Any, Any] = gym.make(env_id, **arguments)
        for wrapper in settings.wrappers:
            self.inner = _wrapped(self.inner, wrapper)
        self._scale = ActionScale.of(self.inner.action_space)
        if self._scale is None and settings.expert:
            raise ValueError(f"expert={settings.expert}: needs a Box of actions, not {self.inner.action_space}")
        self.metadata = self.metadata | {"render_fps": self.inner.metadata.get("render_fps") or 30}
        self._expert: Callable[..., Any] | None = _resolve("expert", settings.expert) if settings.expert else None
        self._expert_name = settings.expert
        self._success, self._is_solved = _success(settings), _solved(settings)
        self._state_keys = _state_keys(self.inner.observation_space, settings.state, set(self._images.values()))
        # Discrete actions have nothing to scale.
        self.action_space = self.inner.action_space if self._scale is None else self._scale.space
        self.observation_space: gym.Space[Any] = Dict(self._spaces())
        self._goal, self._raw = 0, None

    def _spaces(self) -> dict[str, gym.Space[Any]]:
        ends = np.cumsum([0, *(_size(_entry(self.inner.observation_space, key)) for key in self._state_keys)]).tolist()
        self.state_slices = dict(zip(self._state_keys, map(slice, ends[:-1], ends[1:]), strict=True))
        size, spaces = ends[-1], dict[str, gym.Space[Any]]()
        if size:
            spaces["state"] = Box(-np.inf, np.inf, (size,), np.float32)
        for name, source in self._images.items():
            if source == RENDER:
                self.inner.reset(seed=0)
                shape = self._image(name).shape
            else:
                space = _entry(self.inner.observation_space, source, f"images.{name}")
                _require_image(f"images.{name}={source}", space)
                shape = space.shape if self._image_size is None else (self._image_size, self._image_size, 3)
            spaces[name] = Box(0, 255, shape, np.uint8)
        if not spaces:
            raise ValueError("state=[]: nothing is left to observe; name keys, or images")
        return spaces

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start the episode of ``options["goal"]``, or of an initial state drawn from the seed.

        The environment receives the other options. ``info["success"]`` is true if the environment's own info says so.

        Raises:
            ValueError: The split has no such initial state.
        """
        super().reset(seed=seed)
        goal = choose_goal(self.np_random, options, self.split, self.num_goals[self.split])
        self._goal, inner_seed = goal, FIRST_SEED[self.split] + goal
        # Gymnasium requires reset(seed=...) to do this, but some environments do not.
        self.inner.unwrapped.np_random, _ = seeding.np_random(inner_seed)
        own = {name: value for name, value in (options or {}).items() if name != "goal"}
        # Some environments' reset takes no options.
        self._raw, info = self.inner.reset(seed=inner_seed, **({"options": own} if own else {}))
        return self._observation(), {**info, **self._told(self._is_solved(info))}

    def step(self, action: NDArray[np.float32]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Execute one action: float32 ``[A]`` in [-1, 1], or one of a discrete space.

        Raises:
            ValueError: ``info`` has no key of success, or its value is no finite number.
        """
        self._raw, reward, terminated, truncated, info = self.inner.step(
            action if self._scale is None else self._scale.to_own(action)
        )
        success = self._success(float(reward), bool(terminated), info)
        terminated = bool(terminated) or success
        told = {**info, **self._told(success)}
        return self._observation(), float(reward), terminated, bool(truncated) and not terminated, told

    @property
    def expert_action(self) -> Callable[[], NDArray[np.float32]]:
        """Function without arguments that returns the expert's next action, float32 ``[A]`` in [-1, 1].

        The function raises ValueError if the expert's action has the wrong shape, NaN or inf.

        Raises:
            AttributeError: There is no expert.
        """
        if self._expert is None:
            raise AttributeError("expert_action: there is no expert")
        return self._ask_expert

    def _ask_expert(self) -> NDArray[np.float32]:
        assert self._expert is not None and self._scale is not None
        given, shape = self._expert(self.inner, self._raw), self._scale.space.shape
        action = np.asarray(given, np.float64)
        if action.shape != shape or not np.isfinite(action).all():
            raise ValueError(f"expert={self._expert_name}: must return finite numbers {shape}, returned {given!r}")
        return self._scale.to_unit(action)

    def render(self) -> Any:
        """Return the environment's current frame, uint8 ``[H, W, 3]`` if it renders itself."""
        return self._frame()

    def close(self) -> None:
        """Close the environment."""
        self.inner.close()

    def _observation(self) -> Observation:
        parts = [np.ravel(_entry(self._raw, key)) for key in self._state_keys]
        observation: Observation = {"state": np.concatenate(parts, dtype=np.float32)} if parts else {}
        return observation | {name: self._image(name) for name in self._images}

    def _image(self, name: str) -> NDArray[np.uint8]:
        source = self._images[name]
        image = np.asarray(self._frame() if source == RENDER else _entry(self._raw, source))
        _require_image(f"images.{name}={source}", image)
        return self._resized(image)

    def _frame(self) -> Any:
        renderer = getattr(self.inner.unwrapped, "mujoco_renderer", None)
        if renderer is not None and renderer.viewer is not None:
            renderer.viewer.make_context_current()  # Gymnasium's renderer would use the context created last
        return self.inner.render()

    def _resized(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        size = self._image_size
        if size is None or image.shape[:2] == (size, size):
            return image
        return np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BOX))

    def _told(self, success: bool) -> dict[str, Any]:
        return {"success": success, "instruction": self.instruction, "goal": self._goal}


def _solved(settings: Adaptation) -> Callable[[Mapping[str, Any]], bool]:
    """Return a function that returns True if the info of a reset says that the goal is reached."""
    if settings.success_info is None:
        return lambda info: False
    lenient = replace(settings, success_absent="not_yet")
    return lambda info: _succeeds_by_info(lenient, info)


def _success(settings: Adaptation) -> Callable[[float, bool, Mapping[str, Any]], bool]:
    """Return a function of a step's reward, terminated and info that returns True if the step succeeded."""
    reward_bound, by_termination = settings.success_reward, settings.success_termination
    if settings.success_info is not None:
        return lambda reward, terminated, info: _succeeds_by_info(settings, info)
    if reward_bound is not None:
        return lambda reward, terminated, info: reward >= reward_bound
    return lambda reward, terminated, info: by_termination and terminated


def _succeeds_by_info(settings: Adaptation, info: Mapping[Any, Any]) -> bool:
    """Return the value of ``success_info``.

    Raises:
        ValueError: The key is absent and ``success_absent`` refuses that, or the value is no finite number, one
            between 0 and 1, or negative.
    """
    found: Any = info
    for name in _path(info, str(settings.success_info)):
        if name is None:
            if settings.success_absent == "not_yet":
                return False
            raise ValueError(
                f"success_info={settings.success_info!r}: info has no such key; it has "
                f"{', '.join(map(str, _entries(found))) or 'none'}; success_absent=not_yet allows that"
            )
        found = found[name]
    value = np.asarray(found)
    if value.dtype.kind not in "biuf" or value.size != 1 or not np.isfinite(value).all():
        raise ValueError(
            f"success_info={settings.success_info!r}: must be true or false, or a number, in every step, is "
            f"{_brief(found)}"
        )
    if 0 < value < 1:
        raise ValueError(
            f"success_info={settings.success_info!r}: is {_brief(found)}, and a share of the goal is no success; a "
            "wrapper can compare it, or success_reward"
        )
    if value < 0:
        raise ValueError(
            f"success_info={settings.success_info!r}: is {_brief(found)}; allowed are true, false, 0 and numbers of "
            "at least 1"
        )
    return bool(value)


def _brief(value: Any) -> str:
    """Return a value's representation in one short line, without addresses in memory."""
    line = re.sub(r" at 0x\w+", "", " ".join(repr(value).split()))
    return line if len(line) <= 80 else f"{line[:77]}..."


def _state_keys(space: gym.Space[Any], wanted: Sequence[str] | None, images: set[str]) -> tuple[str, ...]:
    """Return the keys of the entries in the state; ``""`` stands for an observation that is not a dict."""
    for key in wanted or ():
        if _entry(space, key, "state").shape is None:
            raise ValueError(f"state={key}: must be an array of numbers, is {_brief(_entry(space, key))}")
    if wanted is not None:
        return tuple(wanted)
    keys = tuple(key for key in _leaves(space) if key not in images and not _is_image(_entry(space, key)))
    for key in keys:
        if key and _entry(space, key).shape is None:
            arrays = [each for each in _leaves(space) if each not in images and _entry(space, each).shape is not None]
            raise ValueError(
                f"state=null: the observation {key!r} is {_brief(_entry(space, key))}, not an array of numbers; name "
                f"others, such as state=[{','.join(arrays)}], or convert it by a wrapper"
            )
    return keys


def _leaves(space: gym.Space[Any], prefix: str = "") -> list[str]:
    if not isinstance(space, Dict):
        return [prefix]
    names = {key: f"{prefix}.{key}" if prefix else key for key in space.spaces}
    return [leaf for key, entry in space.spaces.items() for leaf in _leaves(entry, names[key])]


def _size(space: gym.Space[Any]) -> int:
    if space.shape is None:
        raise ValueError(f"its observation must be made of arrays, has {space}; a wrapper can flatten it")
    return int(np.prod(space.shape))


def _is_image(space: gym.Space[Any]) -> bool:
    return len(space.shape or ()) == 3 and space.dtype == np.uint8


def _require_image(argument: str, found: Any) -> None:
    """Check that an array, or the space of one, is an image as policies expect it."""
    if found.dtype != np.uint8 or len(found.shape) != 3 or found.shape[2] != 3:
        raise ValueError(
            f"{argument}: must be uint8 [H, W, 3], is {found.dtype} {found.shape}; wrappers can make it so"
        )


def _entry(tree: Any, key: str, argument: str = "state") -> Any:
    """Return the entry of nested dicts (of spaces or arrays) at a dotted key."""
    for part in _path(tree, key):
        if part is None:
            known = ", ".join(map(str, _entries(tree))) or "none, as it is not a dict"
            raise ValueError(f"{argument}={key}: the observation has no such key; it has {known}")
        tree = _entries(tree)[part]
    return tree


def _path(tree: Any, key: str) -> Iterator[str | None]:
    """Yield the keys from the root of nested dicts to the entry at a dotted key; end with ``None`` at a missing key.

    Keys may contain dots themselves, as LeRobot's do, so the longest matching key is used.
    """
    rest: str = key
    while rest:
        entries = _entries(tree)
        names = (name for name in entries if isinstance(name, str) and f"{rest}.".startswith(f"{name}."))
        part = max(names, key=len, default=None)
        yield part
        if part is None:
            return
        tree, rest = entries[part], rest[len(part) + 1 :]


def _entries(tree: Any) -> Mapping[str, Any]:
    """Return the entries of a dict (of spaces or values); none for anything else."""
    return tree.spaces if isinstance(tree, Dict) else tree if isinstance(tree, Mapping) else {}


def _wrapped(env: gym.Env[Any, Any], wrapper: str) -> gym.Env[Any, Any]:
    function = _resolve("wrappers", wrapper)
    try:
        wrapped = function(env)
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        raise ImportError(f"wrappers={wrapper}: {error}") from error
    except Exception as error:  # a wrapper may raise anything; the message must blame it and not the environment
        raise ValueError(f"wrappers={wrapper}: {type(error).__name__}: {error}") from error
    if not isinstance(wrapped, gym.Env):
        raise ValueError(f"wrappers={wrapper}: must return a gymnasium.Env, returned {wrapped!r}")
    return wrapped


def _resolve(argument: str, reference: str) -> Callable[..., Any]:
    module, _, name = reference.partition(":")
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ImportError(f"{argument}={reference}: {error}; must be module:function") from error
    except Exception as error:  # a user's module may raise anything; it is reported in one line
        raise ImportError(f"{argument}={reference}: cannot be imported: {type(error).__name__}: {error}") from error
    return function
