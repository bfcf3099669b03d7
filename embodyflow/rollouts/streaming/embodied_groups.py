"""Groups of episodes that one version of a robot policy plays side by side, each in environments of its own."""

import copy
import time
from collections.abc import Sequence
from functools import partial
from typing import Self

from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.data.batches import Columns
from embodyflow.data.rows_file import Journal
from embodyflow.policies.base import ActingPolicy, Decision
from embodyflow.policies.policy_registry import build_acting_policy
from embodyflow.rollouts.embodied_rollout import SMALLEST_BATCH, EmbodiedRollout
from embodyflow.rollouts.episode_rows import Episode
from embodyflow.rollouts.episode_turns import Decide, Situation, Stage
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
        other.policy = self._build_policy()
        return other

    def begin(self) -> None:
        """Begin to play groups."""
        self._decisions = self._shared_decisions(self.policy)

    def end(self) -> None:
        """Cancel the groups that are still played: each ends at its next decision."""
        self._decisions.close()

    def play_group(
        self, seed: int, node_id: str, index: int, attempt: int, journal: Journal, timeout: float
    ) -> Columns:
        """Play a group beside others; may be called from several threads."""
        del journal  # a group that is lost begins again, since its name and its weights say what it does
        iteration, episodes = rows_of_group(self.config, index, attempt, partial(self.training_episodes, seed))
        decisions = self._decisions

        def decide(situation: Situation) -> Decision:
            assert situation.noise is not None, "episodes for training are sampled"
            return decisions.decide(situation.observation, situation.noise)

        return self._play_beside_others(episodes, (seed, iteration, node_id), decide, timeout)

    def _play_beside_others(
        self, episodes: Sequence[Episode], draws: tuple[int | str, ...], decide: Decide, timeout: float
    ) -> Columns:
        """Play the episodes of a group in environments of their own, until a time limit ends it at a decision."""
        deadline, task = time.monotonic() + timeout, episodes[0].env_task_id

        def decide_in_time(situation: Situation) -> Decision:
            if time.monotonic() > deadline:
                raise TimeoutError
            return decide(situation)

        def play(env: VectorEnv) -> Columns:
            stage = Stage(env, "train", [task] * env.num_envs, [range(env.num_envs)])
            return self._play_on(stage, decide_in_time, episodes, draws)

        with self._sets.borrow(task, timeout) as environments:
            return environments.run(play)

    def close(self) -> None:
        """Close every environment."""
        self._sets.close()
        super().close()

    def _build_policy(self) -> ActingPolicy:
        return build_acting_policy(self.config.policy, self.config.cluster.device)

    def _shared_decisions(self, policy: ActingPolicy) -> SharedDecisions:
        """Let threads share the batches of a policy, which are as large as those of whole iterations."""
        size = max(self.config.rollout.envs_per_worker, len(self.config.env.tasks), SMALLEST_BATCH)
        return SharedDecisions(partial(self._decide_by, policy, batch_size=size), size)

    def _build_set(self, task: int) -> VectorEnv:
        rollout = self.config.rollout
        num_processes = min(rollout.env_processes // rollout.most_groups_in_flight, rollout.group_size)
        return self._build_envs("train", [task] * rollout.group_size, num_processes)
