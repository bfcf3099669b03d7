"""The stepping side of a batch: one ``gymnasium.vector.VectorEnv`` with all lanes of a rollout worker.

A lane is one of the environments that the batch steps together. :class:`BatchGroup` answers the calls of
:class:`~embodyflow.simulation.vector.worker.EnvGroup`, in the calling process or in one that runs :func:`main`.
"""

import contextlib
import copy
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from embodyflow.policies.observations import entries_of, fitted
from embodyflow.simulation.vector.worker import Array, EnvError, EnvGroup, raise_env_error, serve

Batch = gym.vector.VectorEnv[Any, Any, Any]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class BatchSource:
    """A batch to build.

    Attributes:
        make: Function from a number of lanes to the batch.
        seeded: True if an episode begins by a reset with a seed, False if it begins by the batch's automatic reset.
        max_steps: Steps after which every episode must have ended.
        reset_options: Options that every reset receives.
    """

    make: Callable[[int], Batch]
    seeded: bool
    max_steps: int
    reset_options: Mapping[str, Any]


@dataclass(frozen=True)
class BatchFacts:
    """What a batch says of itself.

    Attributes:
        num_lanes: Its number of lanes.
        autoreset: ``metadata["autoreset_mode"]``; ``None`` if it is missing.
        observation_space: Space of a lane's observation.
        action_space: Space of a lane's action.
    """

    num_lanes: int
    autoreset: Any
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]


class BatchGroup(EnvGroup):
    """One batch. A call is for all of its lanes, whichever the caller names.

    A step executes in the lanes that the caller does not name an action of one that it names. They must be reset before
    their next use.
    """

    def __init__(self) -> None:
        super().__init__()
        self._open = contextlib.ExitStack()
        self._batch: Batch
        self._source: BatchSource
        self._mode: AutoresetMode
        self._over: Flags  # lanes whose last step ended an episode
        self._lengths: npt.NDArray[np.int64]  # steps of each lane's episode
        self._observation: Mapping[str, Array] = {}  # of all lanes after the last call; empty before the first

    def build_batch(self, pickled_source: bytes, num_lanes: int) -> BatchFacts:
        """Build a cloudpickled :class:`BatchSource` with so many lanes; return what the batch says of itself."""
        self._source = cloudpickle.loads(pickled_source)
        with raise_env_error(None):
            self._batch = self._source.make(num_lanes)
            self._open.callback(self._batch.close)
            mode = self._batch.metadata.get("autoreset_mode")
            spaces = self._batch.single_observation_space, self._batch.single_action_space
            facts = BatchFacts(self._batch.num_envs, mode, *spaces)
        self._mode = mode if isinstance(mode, AutoresetMode) else AutoresetMode.DISABLED  # the caller refuses others
        self._over, self._lengths = np.zeros(num_lanes, np.bool_), np.zeros(num_lanes, np.int64)
        self._all, self._all_places = list(range(num_lanes)), slice(num_lanes)
        return facts

    def reset(
        self, indices: Sequence[int], seeds: Sequence[int | None], options: Sequence[dict[str, Any] | None]
    ) -> None:
        """Begin episodes in some lanes and write their first observations.

        Without seeds the batch has reset the lanes itself, and this writes what it observed then. In the mode NextStep
        it does so at its next step only; the observation stays that of the end.
        """
        del options  # a batch has the same for all lanes
        if seeds[0] is not None:
            with raise_env_error(None):
                self._reset(indices, [0 if seed is None else seed for seed in seeds])
        self._write(indices, self._observation)
        self._require_finite_observation(indices)

    def _reset(self, indices: Sequence[int], seeds: Sequence[int]) -> None:
        chosen, options = list(indices), copy.deepcopy(dict(self._source.reset_options))
        seed: int | list[int] = seeds[0]
        if self._source.seeded:
            by_lane = np.zeros(len(self._over), np.int64)
            by_lane[chosen] = seeds
            seed = by_lane.tolist()
            if self._observation and len(chosen) < len(by_lane):  # the first reset is one of all lanes
                options["reset_mask"] = self._mask(chosen)
        observation, _ = self._batch.reset(seed=seed, options=options or None)  # type: ignore[arg-type] # a list too
        self._observation = self._arrays(observation)
        self._over[chosen], self._lengths[chosen] = False, 0

    def step(self, indices: Sequence[int]) -> None:
        """Execute one action in every lane and write the results of ``indices``."""
        try:
            self._step(indices)
        except Exception as error:
            raise EnvError(None, traceback.format_exc()) from error
        self._require_finite(indices, "a reward", self._buffers.rewards)
        self._require_finite_observation(indices)

    def _step(self, indices: Sequence[int]) -> None:
        actions = self._buffers.actions[:, 0].copy()
        if len(indices) < len(actions):
            self._fill(actions, indices)
        idle = self._over if self._mode is AutoresetMode.NEXT_STEP else None  # this step only resets these lanes
        observation, *answers, infos = self._batch.step(actions)
        rewards, terminated, truncated = (self._one_per_lane(answer) for answer in answers)
        self._observation = self._arrays(observation)
        self._over = _flags(terminated) | _flags(truncated)
        self._check_mode(infos, rewards, idle)
        self._lengths += 1
        if idle is not None:
            self._lengths[idle] = 0
        self._end_episodes(indices)
        buffers, chosen = self._buffers, self._places(indices)
        self._write(indices, self._ends(infos))
        buffers.rewards[chosen, 0] = rewards[chosen]
        buffers.terminated[chosen], buffers.truncated[chosen] = terminated[chosen], truncated[chosen]
        buffers.num_steps[chosen] = 1
        if idle is not None:
            buffers.rewards[idle], buffers.num_steps[idle] = 0, 0

    def _fill(self, actions: Array, indices: Sequence[int]) -> None:
        """Give the lanes that a step does not name an action of one that it names; reset those that need it."""
        others = ~self._mask(indices)
        actions[others] = actions[indices[0]]
        if self._mode is AutoresetMode.DISABLED and (stopped := np.flatnonzero(others & self._over)).size:
            self._reset(stopped.tolist(), [0] * stopped.size)

    def _check_mode(self, infos: Mapping[str, Any], rewards: Array, idle: Flags | None) -> None:
        """Check that the batch resets lanes as its ``autoreset_mode`` says.

        Otherwise first observations would pass for the last ones of an episode, and transitions for resets.

        Args:
            infos: Infos of the step.
            rewards: Reward of each lane.
            idle: Lanes that the step only reset; ``None`` in modes without such lanes.

        Raises:
            ValueError: It does not.
        """
        said = f"autoreset_mode={self._mode.value}: the batch does not reset itself as it says: "
        if "final_obs" in infos and self._mode is not AutoresetMode.SAME_STEP and self._over.any():
            raise ValueError(f"{said}the infos of a step that ends an episode have 'final_obs', as only SameStep does")
        if idle is None:
            return
        wrong = np.flatnonzero(idle & (self._over | (rewards != 0)))
        if wrong.size:
            raise ValueError(
                f"{said}the step after an end only resets lane {wrong[0]}, so its reward must be 0 and its flags "
                f"false; the reward is {float(rewards[wrong[0]]):g}"
            )

    def _end_episodes(self, indices: Sequence[int]) -> None:
        """Forget the lengths of episodes that ended.

        Raises:
            ValueError: An episode is longer than ``max_steps``.
        """
        if self._lengths.max() >= self._source.max_steps:
            late = self._mask(indices) & ~self._over & (self._lengths >= self._source.max_steps)
            if late.any():
                raise ValueError(
                    f"env.max_steps={self._source.max_steps}: the episode of lane {late.argmax()} goes on after as "
                    "many steps; a batch must truncate its episodes itself"
                )
        self._lengths[self._over] = 0

    def _ends(self, infos: Mapping[str, Any]) -> Mapping[str, Array]:
        """Return the observations after the step: of lanes whose episode ended those of its end.

        Raises:
            ValueError: The infos lack the last observation of such a lane, or it does not fit its space.
        """
        if self._mode is not AutoresetMode.SAME_STEP or not self._over.any():
            return self._observation
        if "final_obs" not in infos:
            raise ValueError("autoreset_mode=SameStep: the infos of the step must have 'final_obs' if an episode ended")
        told = np.asarray(infos.get("_final_obs", self._over), np.bool_)
        if (silent := np.flatnonzero(self._over & ~told)).size:
            raise ValueError(
                f"autoreset_mode=SameStep: infos['_final_obs'] must be true for lane {silent[0]}, whose episode ended"
            )
        ends = {name: column.copy() for name, column in self._observation.items()}
        for lane in np.flatnonzero(self._over).tolist():
            last = _entries_of_lane(infos["final_obs"], lane)
            for name, rows in self._buffers.observation.items():
                ends[name][lane] = fitted(name, last[name], rows.shape[1:], rows.dtype)
        return ends

    def _arrays(self, observation: Any) -> Mapping[str, Array]:
        """Return the observations of all lanes by name.

        Raises:
            ValueError: An observation does not fit its space; see :func:`~embodyflow.policies.observations.fitted`.
        """
        entries, arrays = entries_of(observation), {}
        for name, rows in self._buffers.observation.items():
            arrays[name] = fitted(name, entries[name], rows.shape, rows.dtype)
        return arrays

    def _one_per_lane(self, values: Any) -> Array:
        found = np.asarray(values)
        if found.shape != self._over.shape:
            raise ValueError(f"a step must return one value per lane, {self._over.shape}, it returned {found.shape}")
        return found

    def _mask(self, indices: Sequence[int]) -> Flags:
        mask = np.zeros(len(self._over), np.bool_)
        mask[indices] = True
        return mask

    def _write(self, indices: Sequence[int], observation: Mapping[str, Array]) -> None:
        chosen = self._places(indices)
        for name, rows in self._buffers.observation.items():
            rows[chosen] = observation[name][chosen]

    def close(self) -> None:
        """Close the batch."""
        with raise_env_error(None):
            self._open.close()


def _entries_of_lane(observations: Any, lane: int) -> Mapping[str, Any]:
    """Return the entries of one lane, from an array with an observation per lane or from a dict of such arrays."""
    if isinstance(observations, Mapping):
        return {name: column[lane] for name, column in observations.items()}
    return entries_of(observations[lane])


def _flags(values: Array) -> Flags:
    """Return the flags of a step.

    Raises:
        ValueError: They are not true or false.
    """
    if values.dtype != np.bool_ and not np.isin(values, (0, 1)).all():
        raise ValueError(f"the flags of a step must be true or false, are {values.tolist()}")
    return values.astype(np.bool_)


def main(descriptor: int, parent_pid: int, lifeline: int, stacks: int, busy_waits: int) -> None:
    """Run a process with a batch; see :func:`~embodyflow.simulation.vector.worker.serve`."""
    serve(BatchGroup(), descriptor, parent_pid, lifeline, stacks, busy_waits)
