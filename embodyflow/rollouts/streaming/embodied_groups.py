"""Groups of episodes that one version of a robot policy plays side by side, each in environments of its own."""

import copy
import time
from collections.abc import Mapping
from functools import partial
from typing import Self

import numpy as np

from embodyflow.config.embodied import EmbodiedConfig
from embodyflow.data.batches import Columns
from embodyflow.data.rows_file import Journal
from embodyflow.policies.base import Decision
from embodyflow.policies.policy_registry import build_acting_policy
from embodyflow.rollouts.embodied_rollout import SMALLEST_BATCH, EmbodiedRollout
from embodyflow.rollouts.episode_turns import Stage
from embodyflow.rollouts.group_rollout import rows_of_group
from embodyflow.rollouts.streaming.environment_sets import EnvironmentSets
from embodyflow.rollouts.streaming.shared_decisions import SharedDecisions
from embodyflow.simulation.vector_env import VectorEnv


class EmbodiedGroups(EmbodiedRollout):
    """Implements :class:`~embodyflow.nodes.engines.GroupEngine`.

    The episodes of a group take their turns together, and wait for no other group. All groups share the batches of the
    policy, which have the size of those of whole iterations. So a group has the rows that it would have there, to the
    last bit.

    Args:
        config: Run configuration.
        rank: Rank of this worker in its group.
        world_size: Number of workers in the group.
    """

    def __init__(self, config: EmbodiedConfig, rank: int, world_size: int) -> None:
        super().__init__(config, rank, world_size)
        self._sets = EnvironmentSets(self._build_set, config.rollout.most_groups_in_flight)

    def for_another_version(self) -> Self:
        """Return an engine with a policy of its own and the environments of this one."""
        other = copy.copy(self)
        other.policy = build_acting_policy(self.config.policy, self.config.cluster.device)
        return other

    def begin(self) -> None:
        """Begin to play groups."""
        envs, num_tasks = self.config.rollout.envs_per_worker, len(self.config.env.tasks)
        size = max(envs, num_tasks, SMALLEST_BATCH)
        self._decisions = SharedDecisions(partial(self._decide, batch_size=size), size)

    def end(self) -> None:
        """Cancel the groups that are still played: each ends at its next decision."""
        self._decisions.close()

    def play_group(
        self, seed: int, node_id: str, index: int, attempt: int, journal: Journal, timeout: float
    ) -> Columns:
        """Play a group beside others; may be called from several threads."""
        del journal  # a group that is lost begins again, since its name and its weights say what it does
        deadline, decisions = time.monotonic() + timeout, self._decisions
        iteration, episodes = rows_of_group(self.config, index, attempt, partial(self.training_episodes, seed))

        def decide(observation: Mapping[str, np.ndarray], noise: np.ndarray | None, num_envs: int) -> Decision:
            if time.monotonic() > deadline:
                raise TimeoutError
            assert noise is not None, "episodes for training are sampled"
            return decisions.decide(observation, noise)

        def play(env: VectorEnv) -> Columns:
            everything = range(env.num_envs)
            stage = Stage(env, "train", [task] * env.num_envs, [everything])
            return self._play_on(stage, decide, episodes, (seed, iteration, node_id))

        task = episodes[0].env_task_id
        with self._sets.borrow(task, timeout) as environments:
            return environments.run(play)

    def close(self) -> None:
        """Close every environment."""
        self._sets.close()
        super().close()

    def _build_set(self, task: int) -> VectorEnv:
        rollout = self.config.rollout
        num_processes = min(rollout.env_processes // rollout.most_groups_in_flight, rollout.group_size)
        return self._build_envs("train", [task] * rollout.group_size, num_processes)
