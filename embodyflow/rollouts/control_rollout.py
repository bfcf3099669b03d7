"""A control task and a policy in one process: a fixed number of steps of every environment per iteration.

Episodes go on over iterations; environments are reset when theirs ends. What an iteration leaves open is kept on disk:
a worker that takes another's place, or does an iteration again, goes on where the iteration before had ended.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from gymnasium.spaces import Box

from embodyflow.config.control import ControlConfig
from embodyflow.data.batches import Columns
from embodyflow.data.metrics import Metric
from embodyflow.errors import DamageError
from embodyflow.policies.env_match import check_match
from embodyflow.policies.policy_registry import build_acting_policy
from embodyflow.process.repeatable import repeat_numbers
from embodyflow.rollouts.open_episodes import OpenEpisodes, OpenEpisodesFolder
from embodyflow.seeding import LARGEST_ENV_SEED, derive_rng, derive_seed
from embodyflow.simulation.make_env import make_env
from embodyflow.simulation.vector_env import ChunkStep, Supervision, VectorEnv


@dataclass
class Finished:
    """Episodes that ended: their returns (sums of rewards) and lengths."""

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)


class ControlRollout:
    """The rollout engine of control tasks.

    Args:
        config: of the run.
        rank: of this worker in its group.
        world_size: workers in the group.
    """

    def __init__(self, config: ControlConfig, rank: int, world_size: int) -> None:
        torch.set_num_threads(1)
        repeat_numbers(config.cluster.device)
        self.config, self.rank, self.world_size = config, rank, world_size
        self._num_envs, self._num_steps = config.rollout.envs_per_worker, config.rollout.num_steps
        self._env = VectorEnv(
            [functools.partial(make_env, config.env, None, "train")] * self._num_envs,
            num_workers=config.rollout.env_processes,
            chunk_size=1,
            supervision=Supervision.of(config.env),
        )
        prototype = make_env(config.env, None, "train")
        check_match(config.policy, prototype)
        self.policy = build_acting_policy(config.policy, config.cluster.device)
        assert isinstance(prototype.action_space, Box)
        self._low, self._high = prototype.action_space.low, prototype.action_space.high
        prototype.close()
        self._num_episodes = np.zeros(self._num_envs, np.int64)
        self._returns, self._lengths = np.zeros(self._num_envs), np.zeros(self._num_envs, np.int64)
        self._state = np.zeros((self._num_envs, config.policy.state_dim), np.float32)
        self._after: int | None = None  # the iteration whose end the environments stand at
        self.policy_version = -1

    def update_weights(self, weights: Mapping[str, np.ndarray], version: int) -> None:
        """Act with these weights from now on."""
        self.policy.model.load_state_dict({name: torch.from_numpy(np.array(w)) for name, w in weights.items()})
        self.policy_version = version

    def collect(
        self, iteration: int, draws: tuple[int | str, ...], folder: Path | None = None
    ) -> tuple[Columns, Finished]:
        """Step every environment ``rollout.num_steps`` times, sampling its actions.

        Args:
            iteration: its index, from 1; it goes on where the one before it ended, and makes the rows' uid.
            draws: with the environment's number appended, names the seed of its actions.
            folder: where open episodes are kept; ``None`` keeps none, and asks for iterations in their order.

        Returns:
            Rows of a control task (:mod:`embodyflow.types`): a row is what one environment did of one episode. And
            the episodes that ended.

        Raises:
            DamageError: another worker played the iteration before, and what it left open is not in the folder.
        """
        # A run goes back to a checkpoint that is kept, at most; the newest is still being written when this one begins.
        keep = self.config.trainer.keep_checkpoints + 2
        kept = None if folder is None else OpenEpisodesFolder(folder, self.rank, keep)
        self._stand_after(iteration - 1, kept)
        self._after = None  # until this iteration is done
        ranks = range(self.rank * self._num_envs, (self.rank + 1) * self._num_envs)
        shape = (self._num_steps, self.config.policy.action_dim)
        uniforms = np.stack([derive_rng(*draws, number).random(shape) for number in ranks], axis=1)
        record = _Record(self._num_envs, self._num_steps, self.config)
        finished = Finished()
        for t in range(self._num_steps):
            decision = self.policy.act({"state": self._state}, uniforms[t], self.config.rollout.temperature)
            step = self._env.step(np.clip(decision.actions, self._low, self._high))
            record.columns["state"][:, t] = self._state
            record.columns["action_tokens"][:, t] = decision.tokens
            record.columns["log_probs"][:, t] = decision.log_probs
            record.columns["rewards"][:, t] = step.rewards
            self._state = step.observation["state"].astype(np.float32)
            over = np.flatnonzero(step.terminated | step.truncated)
            record.end(over, t, self._state, step.terminated)
            self._count(step, over, finished)
            self._reset(over)
        record.end(np.arange(self._num_envs), self._num_steps - 1, self._state, np.zeros(self._num_envs, np.bool_))
        first_uid = iteration * self.config.rows_per_iteration + self.rank * self._num_envs * self._num_steps
        seeds = np.array([derive_seed(*draws, number) for number in ranks])
        if kept is not None:
            kept.write(iteration, OpenEpisodes(self._env.histories(), self._num_episodes, self._returns))
        self._after = iteration
        return record.rows(first_uid, seeds, self.policy_version), finished

    def _stand_after(self, iteration: int, kept: OpenEpisodesFolder | None) -> None:
        """Have the environments stand where the iteration left them, 0 being the start of the run."""
        if iteration == self._after:
            return
        self._env.abandon()
        if iteration == 0:
            self._num_episodes[:], self._returns[:], self._lengths[:] = 0, 0.0, 0
            self._reset(np.arange(self._num_envs))
            return
        if kept is None:
            raise DamageError(f"nothing says where iteration {iteration} left the environments")
        episodes = kept.read(iteration)
        self._state = self._env.replay(episodes.histories)["state"].astype(np.float32)
        self._num_episodes, self._returns = episodes.num_episodes, episodes.returns
        self._lengths = np.array([len(history.actions) for history in episodes.histories])

    def _count(self, step: ChunkStep, over: np.ndarray, finished: Finished) -> None:
        self._returns += step.rewards[:, 0]
        self._lengths += 1
        finished.returns += self._returns[over].tolist()
        finished.lengths += self._lengths[over].tolist()
        self._returns[over], self._lengths[over] = 0.0, 0

    def _reset(self, envs: np.ndarray) -> None:
        """Start each environment's next episode, from a seed of its own."""
        if len(envs):
            numbers = (self.rank * self._num_envs + envs).tolist()
            episodes = self._num_episodes[envs].tolist()
            seeds = [
                derive_seed(self.config.seed, "episode", number, episode) % (LARGEST_ENV_SEED + 1)
                for number, episode in zip(numbers, episodes, strict=True)
            ]
            self._state[envs] = self._env.reset(envs.tolist(), seeds)["state"]
            self._num_episodes[envs] += 1

    def fault_metrics(self) -> dict[str, Metric]:
        """Count what was done about environments that crash or hang since the last call."""
        return self._env.supervision.metrics()

    def close(self) -> None:
        """Close every environment."""
        self._env.close()


class _Record:
    """What n environments did in T steps, to be cut at the ends of episodes."""

    def __init__(self, num_envs: int, num_steps: int, config: ControlConfig) -> None:
        shape, policy = (num_envs, num_steps), config.policy
        self.columns: Columns = {
            "state": np.zeros((*shape, policy.state_dim), np.float32),
            "action_tokens": np.zeros((*shape, policy.action_dim), np.float32),
            "log_probs": np.zeros((*shape, 1), np.float32),
            "rewards": np.zeros((*shape, 1), np.float32),
            "loss_mask": np.ones((*shape, 1), np.bool_),
        }
        self._longest = min(num_steps, config.env.max_steps)
        self._start = np.zeros(num_envs, np.int64)
        self._pieces: list[tuple[int, int, int]] = []  # environment, first step, number of steps
        self._final_states: list[np.ndarray] = []
        self._terminated: list[bool] = []

    def end(self, envs: np.ndarray, t: int, states: np.ndarray, terminated: np.ndarray) -> None:
        """End a piece of each environment after step t, in states ``[n, S]``; nothing where no step was taken."""
        for env in envs[self._start[envs] <= t].tolist():
            first = int(self._start[env])
            self._pieces.append((env, first, t + 1 - first))
            self._final_states.append(states[env].copy())
            self._terminated.append(bool(terminated[env]))
            self._start[env] = t + 1

    def rows(self, first_uid: int, seeds: np.ndarray, policy_version: int) -> Columns:
        """Return the pieces as rows, zero after their ends."""
        num_steps = self.columns["state"].shape[1]
        rows = {
            name: np.zeros((len(self._pieces), self._longest, *column.shape[2:]), column.dtype)
            for name, column in self.columns.items()
        }
        for row, (env, first, length) in enumerate(self._pieces):
            for name, column in self.columns.items():
                rows[name][row, :length] = column[env, first : first + length]
        envs, starts, lengths = (np.array(numbers, np.int64) for numbers in zip(*self._pieces, strict=True))
        return rows | {
            "uid": first_uid + envs * num_steps + starts,
            "group_id": first_uid + envs * num_steps + starts,
            "policy_version": np.full(len(envs), policy_version, np.int64),
            "seed": seeds[envs],
            "instruction_ids": np.zeros((len(envs), 1), np.int64),
            "num_steps": lengths,
            "final_state": np.stack(self._final_states),
            "terminated": np.array(self._terminated),
        }
