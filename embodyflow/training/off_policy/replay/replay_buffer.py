"""Transitions of environments that are stepped together, and batches drawn from them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from embodyflow.algorithms.off_policy import n_step_returns
from embodyflow.errors import DamageError
from embodyflow.training.off_policy.replay.segments import Array, Segments, state_in

SEGMENT_SIZE = 65_536
"""Transitions in one file."""

Images = dict[str, torch.Tensor]
"""Images by camera."""


@dataclass(frozen=True)
class Transitions:
    """A batch of B transitions over one or more steps, float32.

    Attributes:
        state: States before the first step, ``[B, S]``.
        action: Actions of the first step, in [-1, 1], ``[B, A]``.
        returns: Discounted sums of the rewards, ``[B]``.
        discounts: Discounts of the value of the next state; 0 where the episode terminated, ``[B]``.
        next_state: States after the last step, ``[B, S]``.
        num_demonstrated: Number of demonstrated transitions, which are the last.
        weights: Factors of their errors in the critics' losses, ``[B]``; ``None`` means 1.
        images: Images before the first step, uint8 ``[B, H, W, 3]`` by camera; empty if the buffer has none.
        next_images: Images after the last step, likewise.
    """

    state: torch.Tensor
    action: torch.Tensor
    returns: torch.Tensor
    discounts: torch.Tensor
    next_state: torch.Tensor
    num_demonstrated: int = 0
    weights: torch.Tensor | None = None
    images: Images = field(default_factory=dict)
    next_images: Images = field(default_factory=dict)

    def with_demonstrations(self, other: "Transitions") -> "Transitions":
        """Return the transitions of both batches, the demonstrated ones last."""
        joined = (torch.cat(pair) for pair in zip(self.tensors, other.tensors, strict=True))
        state, action, returns, discounts, next_state = joined
        return Transitions(
            *(state, action, returns, discounts, next_state),
            num_demonstrated=len(other.returns),
            images=_joined(self.images, other.images),
            next_images=_joined(self.next_images, other.next_images),
        )

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The columns without images, in the order of the attributes."""
        return self.state, self.action, self.returns, self.discounts, self.next_state


@dataclass(frozen=True)
class Shape:
    """What a transition is of.

    Attributes:
        num_envs: E, environments that are stepped together. Transition i of an environment is followed by i + E.
        state_dim: S, features of a state.
        action_dim: A, dimensions of an action.
        cameras: Shape ``(H, W, 3)`` of the images by camera; empty if transitions have none.
    """

    num_envs: int
    state_dim: int
    action_dim: int
    cameras: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> "Shape":
        """Return the shape in the state of a commit, which has the facts."""
        cameras = {
            camera: (height, width, depth) for camera, (height, width, depth) in facts.get("cameras", {}).items()
        }
        return cls(facts["num_envs"], facts["state_dim"], facts["action_dim"], cameras)

    @property
    def record(self) -> np.dtype[Any]:
        """Type of a transition on disk."""
        state, action = ("<f4", (self.state_dim,)), ("<f4", (self.action_dim,))
        columns = {"state": state, "action": action, "reward": ("<f4", ()), "next_state": state}
        flags = {"terminated": ("?", ()), "truncated": ("?", ())}
        frames = {"frame": ("<i8", ()), "next_frame": ("<i8", ())} if self.cameras else {}
        return np.dtype([(name, *kind) for name, kind in (columns | flags | frames).items()])

    def facts(self) -> dict[str, Any]:
        """Return the sizes by name, as JSON keeps them."""
        sizes = {"num_envs": self.num_envs, "state_dim": self.state_dim, "action_dim": self.action_dim}
        cameras = {name: list(size) for name, size in sorted(self.cameras.items())}
        return sizes | ({"cameras": cameras} if cameras else {})

    def differs(self, other: "Shape") -> bool:
        """Return True if transitions of the other shape have other sizes, whatever the number of environments."""
        return replace(self, num_envs=1) != replace(other, num_envs=1)


class ReplayBuffer:
    """The newest transitions of a run, in the order of steps and, within a step, of environments.

    Args:
        segments: Records on disk.
        shape: Sizes of a transition.
        capacity: Number of newest transitions to draw from.
    """

    def __init__(self, segments: Segments, shape: Shape, capacity: int) -> None:
        self._segments, self.shape, self._capacity = segments, shape, capacity

    @classmethod
    def create(cls, folder: Path, shape: Shape, capacity: int, segment_size: int = SEGMENT_SIZE) -> Self:
        """Return an empty buffer in a folder."""
        return cls(Segments.create(folder, shape.record, segment_size), shape, capacity)

    @classmethod
    def open(cls, folder: Path, shape: Shape, capacity: int, state: Mapping[str, Any]) -> Self:
        """Return the buffer of a commit; what was appended later is cut.

        Raises:
            DamageError: A file is missing or damaged, or transitions have other sizes.
        """
        if (found := Shape.of_facts(state)).differs(shape):
            raise _other_sizes(folder, found, shape)
        return cls._of_state(folder, shape, capacity, state, cut=True)

    @classmethod
    def demonstrations(cls, folder: Path, shape: Shape) -> Self:
        """Return the transitions in the folder of another run's buffer, which stays as it is.

        Raises:
            DamageError: They are missing or damaged, or of other sizes.
        """
        state = state_in(folder)
        if (found := Shape.of_facts(state)).differs(shape):
            raise _other_sizes(folder, found, shape)
        return cls._of_state(folder, found, state["length"], state, cut=False)

    @classmethod
    def _of_state(cls, folder: Path, shape: Shape, capacity: int, state: Mapping[str, Any], *, cut: bool) -> Self:
        """Return the buffer of a commit in a folder, of which ``shape`` is the shape; see :meth:`Segments.open`."""
        return cls(Segments.open(folder, shape.record, state, cut=cut), shape, capacity)

    def __len__(self) -> int:
        """Return the number of transitions that were ever appended."""
        return len(self._segments)

    @property
    def oldest(self) -> int:
        """Index of the oldest transition to draw."""
        return max(self._segments.first, len(self) - self._capacity)

    def append(self, columns: Mapping[str, Array]) -> None:
        """Append the transitions of one or more steps of all environments.

        Args:
            columns: ``state``, ``action``, ``reward``, ``next_state``, ``terminated`` and ``truncated``, with n entries
                each, in the order of the buffer.

        Raises:
            ValueError: A number is NaN or inf, also in float32.
        """
        self._segments.append(self._records(columns))

    def _records(self, columns: Mapping[str, Array]) -> Array:
        """Return the transitions of columns as records of ``shape.record``, after a check of their numbers."""
        records = np.empty(len(columns["reward"]), self.shape.record)
        with np.errstate(over="ignore", invalid="ignore"):
            for name in self.shape.record.names or ():
                records[name] = columns[name]
                if not np.isfinite(records[name]).all():
                    raise ValueError(f"replay: the column {name} has NaN, inf or a number that float32 cannot hold")
        return records

    def sample(self, rng: np.random.Generator, size: int, num_steps: int, gamma: float) -> Transitions:
        """Draw transitions uniformly and with replacement; see :meth:`transitions`.

        Args:
            rng: Source of the draws.
            size: B, number of transitions.
            num_steps: Steps of a transition.
            gamma: Discount of one step.
        """
        return self.transitions(rng.integers(self.oldest, len(self), size), num_steps, gamma)

    def transitions(self, starts: Array, num_steps: int, gamma: float) -> Transitions:
        """Return transitions over one or more steps.

        A transition ends early with its episode, and at the newest step, from where its value goes on.

        Args:
            starts: Indices of their first steps, int64 ``[B]``.
            num_steps: Steps of a transition.
            gamma: Discount of one step.
        """
        size = len(starts)
        indices = starts[:, None] + self.shape.num_envs * np.arange(num_steps)
        present = indices < len(self)
        records = self._segments.read(np.where(present, indices, starts[:, None]).ravel()).reshape(size, num_steps)
        goes_on = ~(records["terminated"] | records["truncated"])[:, :-1]
        counted = present & np.cumprod(np.concatenate([np.ones((size, 1), bool), goes_on], 1), 1).astype(bool)
        first, last = records[:, 0], records[np.arange(size), counted.sum(1) - 1]
        returns, discounts = n_step_returns(_tensor(records["reward"]), torch.from_numpy(counted), gamma)
        return self._batch(first, last, returns, discounts.masked_fill(_tensor(last["terminated"]), 0.0))

    def _batch(self, first: Array, last: Array, returns: torch.Tensor, discounts: torch.Tensor) -> Transitions:
        """Return transitions from their first to their last steps, records ``[B]`` of ``shape.record``."""
        columns = (_tensor(first["state"]), _tensor(first["action"]), returns, discounts, _tensor(last["next_state"]))
        return Transitions(*columns)

    def read(self, indices: Array) -> Array:
        """Return copies of the transitions with these indices, int64 ``[n]``, as records of ``shape.record``."""
        return self._segments.read(indices)

    def columns(self) -> dict[str, Array]:
        """Return all transitions by column, as :meth:`append` takes them."""
        records = self._segments.read(np.arange(self._segments.first, len(self)))
        return {name: np.ascontiguousarray(records[name]) for name in self.shape.record.names or ()}

    def commit(self) -> dict[str, Any]:
        """Flush what is new to the disk; return the state by which :meth:`open` finds the buffer again."""
        return self._segments.commit(self.shape.facts(), self.oldest)

    def digests(self) -> list[str]:
        """Return the digests of the buffer's files."""
        return self._segments.digests()

    def drop_before(self, index: int) -> None:
        """Remove files whose transitions are all before ``index``."""
        self._segments.drop_before(index)


def _other_sizes(folder: Path, found: Shape, shape: Shape) -> DamageError:
    return DamageError(f"{folder}: has transitions of sizes {found.facts()}, the run of {shape.facts()}")


def draw(
    buffer: ReplayBuffer,
    demonstrations: ReplayBuffer | None,
    rng: np.random.Generator,
    size: int,
    num_steps: int,
    gamma: float,
) -> Transitions:
    """Draw a batch from a run's buffer, and half of it from demonstrations if there are any.

    Symmetric sampling is that of RLPD (Ball et al. 2023, arXiv:2302.02948); see :meth:`ReplayBuffer.sample`.
    """
    if demonstrations is None:
        return buffer.sample(rng, size, num_steps, gamma)
    own = buffer.sample(rng, size - size // 2, num_steps, gamma)
    return own.with_demonstrations(demonstrations.sample(rng, size // 2, num_steps, gamma))


def of_records(records: Array, gamma: float) -> Transitions:
    """Return single steps ``[B]``, records of :attr:`Shape.record`, as a batch of transitions."""
    discounts = torch.full((len(records),), gamma).masked_fill(_tensor(records["terminated"]), 0.0)
    columns = {name: _tensor(records[name]) for name in ("state", "action", "reward", "next_state")}
    return Transitions(columns["state"], columns["action"], columns["reward"], discounts, columns["next_state"])


def _joined(images: Images, others: Images) -> Images:
    """Return the images of two batches, by camera."""
    return {camera: torch.cat([own, others[camera]]) for camera, own in images.items()}


def _tensor(column: Array) -> torch.Tensor:
    return torch.from_numpy(column.copy())  # that of one record would keep its strides, which torch refuses
