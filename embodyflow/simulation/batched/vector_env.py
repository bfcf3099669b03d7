"""A vector environment whose lanes are one natively batched environment."""

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from embodyflow.errors import ConfigError
from embodyflow.simulation.batched.worker import BatchFacts, BatchGroup, BatchSource
from embodyflow.simulation.environment_output import OutputLimit
from embodyflow.simulation.episode_history import EpisodeHistory
from embodyflow.simulation.supervision import REPLAY_ENDED_EARLY, Call, SupervisedShard, Supervision
from embodyflow.simulation.vector.env import ChunkStep, VectorEnv
from embodyflow.simulation.vector.shards import LocalShard, ProcessShard, Shard
from embodyflow.simulation.vector.worker import Array, EnvError


class SupervisedBatch(SupervisedShard):
    """The shard of a batch: it replays all lanes together and repeats a call as a whole.

    Episodes are aligned at their ends, since all lanes step together: the longest begins first, and a shorter one when
    as many steps are left as it has. The lanes must not influence each other.

    Args:
        start: Function that starts the shard.
        indices: Indices of its lanes.
        supervision: Limits and counters. A limit of time is one for a call of the whole batch.
        resets_itself: True if the batch begins episodes by itself, so that a history has several of them.
    """

    def __init__(
        self, start: Callable[[], Shard], indices: Sequence[int], supervision: Supervision, resets_itself: bool
    ) -> None:
        super().__init__(start, indices, supervision)
        self._resets_itself = resets_itself

    def restoring_calls(self) -> Iterator[Call]:
        """Yield the calls that replay the open episodes, each for all lanes that have begun."""
        recorder, buffers = self.recorder, self.buffers
        rows = np.flatnonzero(recorder.open)
        histories = {row: recorder.history(row) for row in rows.tolist()}
        for begins, steps in aligned([len(history.actions) for history in histories.values()]):
            if begins.size:
                first = rows[begins].tolist()
                seeds = [histories[row].seed for row in first]
                yield Call("reset", (first, seeds, [histories[row].options for row in first]), first)
            if not steps:
                return
            played = rows[list(steps)].tolist()
            for row, t in zip(played, steps.values(), strict=True):
                buffers.actions[row] = histories[row].actions[t]
            yield Call("step", (played,), played)
            for row in [] if self._resets_itself else played:
                if buffers.terminated[row] or buffers.truncated[row]:
                    raise EnvError(row, REPLAY_ENDED_EARLY)

    def parts(self, call: Call) -> Sequence[Call]:
        """Return the call itself."""
        return [call]

    def timeout(self, call: Call) -> float:
        """Return the seconds that a call of the whole batch may take."""
        return self.supervision.step_timeout if call.method == "step" else self.supervision.reset_timeout

    def suspects(self, failed: Call) -> Sequence[int | None]:
        """Return ``None`` for the batch: it does not show which of its lanes failed."""
        del failed
        return [None]


class BatchedVectorEnv(VectorEnv):
    """The lanes of one ``gymnasium.vector.VectorEnv``, with explicit resets and one action per call.

    With a seeded source every reset has a seed per lane; resets of some lanes pass ``options={"reset_mask": mask}``.
    The autoreset mode does not matter: a lane's automatic reset is overwritten.

    Other batches reset themselves. Then a reset with seeds is one of all lanes, by the first seed; after an end,
    :meth:`reset` without seeds returns what the automatic reset observed. In the mode NextStep that is unknown yet: the
    next step of the lane is its reset and has ``num_steps`` 0. A history goes back to the last reset of all lanes.

    A step of some lanes makes the others unusable until their next reset.

    Args:
        source: Batch to build.
        num_lanes: Number of lanes.
        num_processes: 1 steps the batch in a process of its own, 0 in the calling process.
        supervision: Fault limits and counters, which several vector environments may share.
        name: Name of the environment for errors.

    Raises:
        ConfigError: The batch has another number of lanes, an unknown autoreset mode, or spaces that are no arrays.
        EnvError: It cannot be built.
    """

    def __init__(
        self, source: BatchSource, num_lanes: int, *, num_processes: int, supervision: Supervision, name: str
    ) -> None:
        self._source, self._name, self.resets_itself = source, name, not source.seeded
        self._open(
            num_lanes,
            1,
            functools.partial(self._start_batch, num_processes),
            self._build_batch,
            (),
            [name] * num_lanes,
            supervision,
        )

    def _start_batch(self, num_processes: int) -> None:
        start: Callable[[], Shard]
        if num_processes:
            output, busy_waits = OutputLimit("the environment process"), len(os.sched_getaffinity(0)) > 1
            start = functools.partial(ProcessShard, 0, busy_waits, self.supervision.max_bytes, output, BatchGroup)
        else:
            start = functools.partial(LocalShard, OutputLimit(f"the batch of process {os.getpid()}"), BatchGroup)
        self._shards.append(
            SupervisedBatch(start, range(self.num_envs), self.supervision, resets_itself=self.resets_itself)
        )

    def _build_batch(self) -> tuple[gym.Space[Any], gym.Space[Any]]:
        [shard] = self._shards
        shard.prepare("build_batch", cloudpickle.dumps(self._source), self.num_envs)
        facts: BatchFacts = shard.wait_prepared()
        if facts.num_lanes != self.num_envs:
            raise ConfigError(
                f"env.id={self._name}: its num_envs is {facts.num_lanes}, not the {self.num_envs} that it was asked "
                "for (rollout.envs_per_worker, and 1 for an evaluation)"
            )
        if not isinstance(facts.autoreset, AutoresetMode):
            modes = ", ".join(f"AutoresetMode.{mode.name}" for mode in AutoresetMode)
            raise ConfigError(
                f"env.id={self._name}: its metadata['autoreset_mode'] must be one of {modes}, is {facts.autoreset!r}"
            )
        if self.resets_itself and facts.autoreset is AutoresetMode.DISABLED:
            raise ConfigError(
                f"env.vector.resets=automatic: env.id={self._name} has AutoresetMode.DISABLED; allowed is seeded"
            )
        self.skips_resets = self.resets_itself and facts.autoreset is AutoresetMode.NEXT_STEP
        return facts.observation_space, facts.action_space

    @property
    def halves(self) -> list[list[int]]:
        """A single part with all lanes, which step together."""
        return [list(range(self.num_envs))]

    def reset_async(
        self,
        indices: Sequence[int] | None = None,
        seeds: Sequence[int | None] | None = None,
        options: Sequence[dict[str, Any] | None] | None = None,
    ) -> None:
        """Start resetting lanes; see the class for resets without seeds."""
        rows = self._rows(indices)
        if self._source.seeded or seeds is not None:
            if self.resets_itself and len(rows) < self.num_envs:
                raise ValueError("a batch that resets itself takes seeds for all lanes only")
            super().reset_async(indices, seeds, options)
            return
        if not self._recorder.open[rows].all():
            raise ValueError("a batch that resets itself needs a first reset with seeds")
        self._begin("reset", rows, [None] * len(rows), [None] * len(rows))

    def _goes_on(self, step: ChunkStep) -> npt.NDArray[np.bool_]:
        return super()._goes_on(step) | self.resets_itself

    def _replay(self, histories: Sequence[EpisodeHistory], rows: Array) -> None:
        over: list[int] = []
        for begins, steps in aligned([len(history.actions) for history in histories]):
            if begins.size:
                self.reset(rows[begins].tolist(), [histories[k].seed for k in begins.tolist()])
            if not steps:
                break
            played = rows[list(steps)]
            step = self.step(np.stack([histories[k].actions[t : t + 1] for k, t in steps.items()]), played.tolist())
            over = played[step.terminated | step.truncated].tolist()
            if over and not self.resets_itself:
                raise EnvError(over[0], REPLAY_ENDED_EARLY)
        if over:  # the last step of the history ended their episodes
            self.reset(over)


def aligned(lengths: Sequence[int]) -> Iterator[tuple[npt.NDArray[np.int64], Mapping[int, int]]]:
    """Yield the rounds that play episodes so that all of them end in the last round.

    Args:
        lengths: Number of steps of each episode.

    Yields:
        Indices of the episodes that begin in the round, and the number of the step that each of those that have begun
        executes; no step in the last round, which only begins episodes of length 0.
    """
    longest, counts = max(lengths, default=0), np.array(lengths, np.int64)
    for t in range(longest + 1):
        offsets = longest - counts
        steps = {k: t - int(offsets[k]) for k in np.flatnonzero(offsets <= t).tolist()} if t < longest else {}
        yield np.flatnonzero(offsets == t), steps
