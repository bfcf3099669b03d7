"""Rollouts of a control task: a fixed number of steps in every environment per iteration.

Episodes continue across iterations; an environment is reset when its episode ends. The episodes that an iteration
leaves open are stored on disk, so that a replacement worker, or a repeated iteration, continues from the same states.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch

from embodyflow.config.robots.control import ControlConfig
from embodyflow.data.batches import Columns
from embodyflow.data.metrics import Metric
from embodyflow.data.published_weights import views_of
from embodyflow.data.rows_file import Journal
from embodyflow.errors import DamageError
from embodyflow.policies.base import Decision, StepDecisions, StepwisePolicy
from embodyflow.policies.env_match import check_match
from embodyflow.policies.policy_registry import build_acting_policy
from embodyflow.policies.running_statistics.return_scale import return_scale_of
from embodyflow.policies.weight_copies import copy_weights
from embodyflow.process.determinism import use_deterministic_kernels
from embodyflow.process.tracing import span
from embodyflow.rollouts.embodied.executable_actions import executable_actions
from embodyflow.rollouts.open_episodes import OpenEpisodes, OpenEpisodesFolder
from embodyflow.seeding import LARGEST_ENV_SEED, derive_rng, derive_seed
from embodyflow.simulation.control_env import control_env, prototype, success_keys
from embodyflow.simulation.vector.env import ChunkStep, Supervision, VectorEnv

BATCH_EPISODES = 10
"""Number of longest episodes after which a batch that resets itself is reset as a whole, which bounds its replays."""


@dataclass
class Finished:
    """The episodes that ended.

    Attributes:
        returns: Sums of their rewards.
        lengths: Numbers of their steps.
        successes: Whether the last step of each reached the goal; empty if the environment does not say.
    """

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    successes: list[bool] = field(default_factory=list)

    def add(self, later: "Finished") -> None:
        """Append episodes that ended later."""
        self.returns += later.returns
        self.lengths += later.lengths
        self.successes += later.successes


class ControlRollout:
    """The rollout engine of control tasks.

    Args:
        config: Run configuration.
        rank: Rank of this worker in its group.
        world_size: Number of workers in the group.
    """

    def __init__(self, config: ControlConfig, rank: int, world_size: int) -> None:
        torch.set_num_threads(1)
        use_deterministic_kernels(config.cluster.device)
        self.config, self.rank, self.world_size = config, rank, world_size
        self._num_envs, self._num_steps = config.rollout.envs_per_worker, config.rollout.num_steps
        self._success_keys, supervision = success_keys(config.env), Supervision.from_config(config.env)
        processes = config.rollout.env_processes
        self._env = control_env(config.env, "train", self._num_envs, processes, supervision, self._success_keys)
        one = prototype(config.env, self._env)
        check_match(config.policy, one)
        self.policy = build_acting_policy(config.policy, config.cluster.device)
        self._action_space = one.action_space
        one.close()
        self._num_episodes = np.zeros(self._num_envs, np.int64)
        self._returns, self._lengths = np.zeros(self._num_envs), np.zeros(self._num_envs, np.int64)
        self._running_returns = np.zeros(self._num_envs)  # discounted sums of the open episodes' rewards
        self._scales_rewards = return_scale_of(self.policy.model) is not None
        self._state = np.zeros((self._num_envs, config.policy.state_dim), np.float32)
        self._iterations_per_batch = -(-BATCH_EPISODES * config.env.max_steps // self._num_steps)
        self._last_iteration: int | None = None  # the iteration that left the environments in their current states
        self.policy_version = -1

    def update_weights(self, weights: Mapping[str, np.ndarray], version: int) -> None:
        """Load the weights that the policy acts with from now on."""
        copy_weights(self.policy.model, weights, views_of(weights))
        self.policy_version = version

    def collect(
        self, iteration: int, draws: tuple[int | str, ...], folder: Path | None = None
    ) -> tuple[Columns, Finished]:
        """Step every environment ``rollout.num_steps`` times with sampled actions.

        Args:
            iteration: Index of the iteration, from 1. It continues where the previous iteration ended, and determines
                the uid of the rows.
            draws: Parts of the seed of an environment's actions; the environment's number is appended.
            folder: Folder for open episodes. With ``None`` nothing is stored, and iterations must run in order.

        Returns:
            Rows of a control task (:mod:`embodyflow.types`), each with one environment's steps of one episode, and the
            episodes that ended.

        Raises:
            DamageError: Another worker ran the previous iteration, and the folder lacks its open episodes.
        """
        # A run may resume from its oldest kept checkpoint, and the newest may not be written yet.
        keep = self.config.repeatable_iterations + 2
        stored = None if folder is None else OpenEpisodesFolder(folder, self.rank, keep)
        self._restore(iteration - 1, stored)
        self._last_iteration = None  # unknown until this iteration ends
        ranks = range(self.rank * self._num_envs, (self.rank + 1) * self._num_envs)
        shape = (self._num_steps, self.config.policy.action_dim)
        uniforms = np.stack([derive_rng(*draws, number).random(shape) for number in ranks], axis=1)
        record, finished = self._new_record(), Finished()
        decide = self._decisions(uniforms, (iteration - 1) * self._num_steps)
        for t in range(self._num_steps):
            with span("act", "policy", rows=self._num_envs):
                decision = decide(t, self._state)
            self._step(t, decision, record, finished)
        record.end(np.arange(self._num_envs), self._num_steps - 1, self._state, np.zeros(self._num_envs, np.bool_))
        first_uid = iteration * self.config.rows_per_iteration + self.rank * self._num_envs * self._num_steps
        seeds = np.array([derive_seed(*draws, number) for number in ranks])
        if stored is not None:
            histories = self._env.histories()
            counts = self._num_episodes, self._returns, self._running_returns, self._lengths
            stored.write(iteration, OpenEpisodes(histories, *counts))
        self._last_iteration = iteration
        return record.rows(first_uid, seeds, self.policy_version), finished

    def evaluate(self, episodes: Sequence[int], journal: Journal | None = None) -> Finished:
        """Play evaluation episodes with the policy's deterministic actions.

        The episodes have environments of their own, or a batch of one lane. So training episodes continue as if there
        were no evaluation. The initial states are the same in every evaluation of a run, and are drawn by another name
        than those of training.

        Args:
            episodes: Numbers of the episodes, from 0.
            journal: File that keeps episodes as they end, and may have those of an earlier attempt.
        """
        finished = Finished()
        for table in [] if journal is None else journal.read():
            finished.add(Finished(**{name: column.tolist() for name, column in cast(Columns, table).items()}))
        with closing(self._evaluation_envs(episodes[len(finished.returns) :])) as played:
            for episode, env in played:
                seed = derive_seed(self.config.seed, "evaluation episode", episode) % (LARGEST_ENV_SEED + 1)
                ended = self._evaluate_episode(env, seed)
                finished.add(ended)
                if journal is not None:
                    journal.append({name: np.array(values) for name, values in vars(ended).items() if values})
        return finished

    def _evaluation_envs(self, episodes: Sequence[int]) -> Generator[tuple[int, VectorEnv], None, None]:
        """Yield each episode with the environment to play it in.

        An episode has an environment of its own. A batch, which may take long to build, plays all of them.
        """
        config = self.config
        per_env = 1 if config.env.vector is None else max(len(episodes), 1)
        for first in range(0, len(episodes), per_env):
            num_processes = min(1, config.rollout.env_processes)
            supervision = self._env.supervision
            with closing(control_env(config.env, "eval", 1, num_processes, supervision, self._success_keys)) as env:
                for episode in episodes[first : first + per_env]:
                    yield episode, env

    def _evaluate_episode(self, env: VectorEnv, seed: int) -> Finished:
        """Play one episode."""
        state, rewards = env.reset([0], [seed])["state"], []
        while True:
            decision = self.policy.act({"state": state.astype(np.float32)}, None, 1.0)
            step = env.step(self._executable(decision.actions))
            state = step.observation["state"]
            rewards.append(float(step.rewards[0, 0]))
            if step.terminated[0] or step.truncated[0]:
                return Finished([float(np.sum(rewards))], [len(rewards)], self._successes(step, np.array([0])))

    def _successes(self, step: ChunkStep, over: np.ndarray) -> list[bool]:
        """Return True for the environments whose last step reached the goal; empty if they do not say."""
        return [success for key in self._success_keys for success in (step.infos[key][over, 0] >= 1).tolist()]

    def _new_record(self) -> "StepRecord":
        record = _Record(self._num_envs, self._num_steps, self.config, self.policy.token_dtype)
        if self._scales_rewards:
            record.columns["running_returns"] = np.zeros((self._num_envs, self._num_steps), np.float32)
        return record

    def _decisions(self, uniforms: np.ndarray, first_step: int) -> StepDecisions:
        """Return the decisions of an iteration's steps.

        Args:
            uniforms: Random numbers in [0, 1), ``[T, n, A]``.
            first_step: Number of steps that each environment has taken in the run before the iteration.
        """
        del first_step
        policy, temperature = self.policy, self.config.rollout.temperature
        if isinstance(policy, StepwisePolicy):
            return policy.prepare_steps(uniforms, temperature)
        return lambda t, states: policy.act({"state": states}, uniforms[t], temperature)

    def _executable(self, actions: np.ndarray) -> np.ndarray:
        """Return the actions that environments execute for the policy's ``[n, 1, A]``."""
        return executable_actions(self._action_space, actions)

    def _step(self, t: int, decision: Decision, record: "StepRecord", finished: Finished) -> None:
        """Step every environment once, record step t and reset the environments whose episodes ended."""
        step = self._env.step(self._executable(decision.actions))
        record.add(t, self._state, decision, step)
        self._state = step.observation["state"].astype(np.float32)
        rewards = step.rewards[:, 0]
        self._running_returns = self.config.algorithm.gamma * self._running_returns + rewards
        if self._scales_rewards:
            record.columns["running_returns"][:, t] = self._running_returns
        self._returns += rewards
        self._lengths += step.num_steps
        over = np.flatnonzero(step.terminated | step.truncated)
        if over.size:
            record.end(over, t, self._state, step.terminated)
            finished.successes += self._successes(step, over)
            self._finish(over, finished)
            self._reset(over)

    def _restore(self, iteration: int, stored: OpenEpisodesFolder | None) -> None:
        """Bring the environments to their states at the end of an iteration; 0 is the start of the run."""
        begins = iteration == 0 or (self._env.resets_itself and iteration % self._iterations_per_batch == 0)
        if iteration == self._last_iteration and not begins:
            return
        self._env.abandon()
        if begins:
            self._num_episodes[:], self._returns[:], self._running_returns[:], self._lengths[:] = 0, 0.0, 0.0, 0
            self._begin(iteration)
            return
        if stored is None:
            raise DamageError(f"iteration {iteration}: its open episodes were not stored, so it cannot be continued")
        episodes = stored.read(iteration)
        self._state = self._env.replay(episodes.histories)["state"].astype(np.float32)
        self._num_episodes, self._returns = episodes.num_episodes, episodes.returns
        self._lengths = episodes.lengths
        if episodes.running_returns is not None:
            self._running_returns = episodes.running_returns
        elif self._scales_rewards:
            raise DamageError(f"iteration {iteration}: its open episodes have no running returns, which scale rewards")

    def _finish(self, over: np.ndarray, finished: Finished) -> None:
        """Record the episodes that ended, and reset their environments' counts."""
        finished.returns += self._returns[over].tolist()
        finished.lengths += self._lengths[over].tolist()
        self._returns[over], self._running_returns[over], self._lengths[over] = 0.0, 0.0, 0

    def _begin(self, iteration: int) -> None:
        """Start the first episodes of the run, or those of a batch that resets itself after so many iterations.

        Such a batch has one seed.
        """
        everything = np.arange(self._num_envs)
        if not self._env.resets_itself:
            self._reset(everything)
            return
        seeds = LARGEST_ENV_SEED + 1 - self._num_envs  # Gymnasium's batches add the number of the lane
        seed = derive_seed(self.config.seed, "batch", self.rank, iteration) % seeds
        self._state[:] = self._env.reset(seeds=[seed] * self._num_envs)["state"]
        self._num_episodes[:] = 1

    def _reset(self, envs: np.ndarray) -> None:
        """Start the next episode of each environment, with a seed derived from the environment and the episode.

        An episode that a batch begins by itself has no seed.
        """
        seeds = None
        if not self._env.resets_itself:
            numbers = (self.rank * self._num_envs + envs).tolist()
            episodes = self._num_episodes[envs].tolist()
            seeds = [
                derive_seed(self.config.seed, "episode", number, episode) % (LARGEST_ENV_SEED + 1)
                for number, episode in zip(numbers, episodes, strict=True)
            ]
        self._state[envs] = self._env.reset(envs.tolist(), seeds)["state"]
        self._num_episodes[envs] += 1

    def fault_metrics(self) -> dict[str, Metric]:
        """Return the counts of environment faults since the last call."""
        return self._env.supervision.metrics()

    def close(self) -> None:
        """Close every environment."""
        self._env.close()


class StepRecord(Protocol):
    """Record of the steps of an iteration.

    Attributes:
        columns: Values by name, each with one entry per environment and step.
    """

    columns: Columns

    def add(self, t: int, states: np.ndarray, decision: Decision, step: ChunkStep) -> None:
        """Record step t: the states before it, ``[n, S]``, the decision and the answer of the environments.

        An environment whose answer has ``num_steps`` 0 has only reset itself: there is nothing to record.
        """

    def end(self, envs: np.ndarray, t: int, states: np.ndarray, terminated: np.ndarray) -> None:
        """End the episodes of some environments, or the iteration, after step t with states ``[n, S]``."""

    def rows(self, first_uid: int, seeds: np.ndarray, policy_version: int) -> Columns:
        """Return the record as rows."""


class _Record:
    """Record of n environments over T steps, which is split into rows at the ends of episodes."""

    def __init__(self, num_envs: int, num_steps: int, config: ControlConfig, token_dtype: np.dtype[Any]) -> None:
        shape, policy = (num_envs, num_steps), config.policy
        self.columns: Columns = {
            "state": np.zeros((*shape, policy.state_dim), np.float32),
            "action_tokens": np.zeros((*shape, policy.action_dim), token_dtype),
            "log_probs": np.zeros((*shape, 1), np.float32),
            "rewards": np.zeros((*shape, 1), np.float32),
            "loss_mask": np.ones((*shape, 1), np.bool_),
        }
        self._longest = min(num_steps, config.env.max_steps)
        self._skips_resets = config.env.vector is not None  # only a batch has steps that are no transitions
        self._start = np.zeros(num_envs, np.int64)
        self._pieces: list[tuple[int, int, int]] = []  # environment, first step, number of steps
        self._final_states: list[np.ndarray] = []
        self._terminated: list[bool] = []

    def add(self, t: int, states: np.ndarray, decision: Decision, step: ChunkStep) -> None:
        """Record step t of every environment."""
        self.columns["state"][:, t] = states
        self.columns["action_tokens"][:, t] = decision.tokens
        self.columns["log_probs"][:, t] = decision.log_probs
        self.columns["rewards"][:, t] = step.rewards
        if self._skips_resets:
            self._start[step.num_steps == 0] = t + 1

    def end(self, envs: np.ndarray, t: int, states: np.ndarray, terminated: np.ndarray) -> None:
        """End a piece of each environment after step t, with states ``[n, S]``; skip environments without a step."""
        for env in envs[self._start[envs] <= t].tolist():
            first = int(self._start[env])
            self._pieces.append((env, first, t + 1 - first))
            self._final_states.append(states[env].copy())
            self._terminated.append(bool(terminated[env]))
            self._start[env] = t + 1

    def rows(self, first_uid: int, seeds: np.ndarray, policy_version: int) -> Columns:
        """Return the pieces as rows, padded with zeros."""
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
