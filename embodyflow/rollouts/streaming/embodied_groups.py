"""Groups of episodes that one version of a robot policy plays side by side, in environments of their own."""

import copy
import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from typing import Self

import numpy as np

from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.data.batches import Columns
from embodyflow.data.rows_file import Journal
from embodyflow.policies.base import ActingPolicy, Decision
from embodyflow.policies.policy_registry import build_acting_policy
from embodyflow.rollouts.embodied.embodied_rollout import SMALLEST_BATCH, EmbodiedRollout
from embodyflow.rollouts.embodied.episode_rows import Episode, MemoryJournal
from embodyflow.rollouts.embodied.episode_turns import Decide, Situation, Stage
from embodyflow.rollouts.group_rollout import rows_of_group
from embodyflow.rollouts.streaming.environment_sets import EnvironmentSets
from embodyflow.rollouts.streaming.shared_decisions import SharedDecisions
from embodyflow.simulation.vector.env import VectorEnv


class EmbodiedGroups(EmbodiedRollout):
    """Implements :class:`~embodyflow.nodes.engines.GroupEngine`.

    The episodes of a group are divided into parts, one for each process of its environments. The episodes of a part
    take their turns together, and wait for no other part. All share the batches of the policy, which have the size of
    those of whole iterations. So a group has the rows that it would have there, to the last bit.

    Args:
        config: Run configuration.
        rank: Rank of this worker in its group.
        world_size: Number of workers in the group.
    """

    def __init__(self, config: EmbodiedConfig, rank: int, world_size: int) -> None:
        super().__init__(config, rank, world_size)
        rollout = config.rollout
        parts_of_group = -(-rollout.group_size // rollout.environments_of_part)
        limit = rollout.envs_per_worker // rollout.environments_of_part
        limit = min(rollout.groups_with_environments * parts_of_group, limit)
        self._sets = EnvironmentSets(self._build_set, limit, len(config.env.tasks))

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
        deadline = time.monotonic() + timeout

        def decide_in_time(situation: Situation) -> Decision:
            if time.monotonic() > deadline:
                raise TimeoutError
            return decide(situation)

        def attempt(playable: Sequence[Episode]) -> Columns:
            return self._play_parts(playable, draws, decide_in_time, deadline)

        return self._with_playable_goals(episodes, "train", attempt)

    def _play_parts(
        self, episodes: Sequence[Episode], draws: tuple[int | str, ...], decide: Decide, deadline: float
    ) -> Columns:
        """Play the parts of a group, each as soon as it has environments; the first error ends all of them."""
        task, size = episodes[0].env_task_id, self.config.rollout.environments_of_part
        errors = list[BaseException]()  # in the order in which they occurred

        def play(first: int, env: VectorEnv) -> Columns:
            def decide_for_part(situation: Situation) -> Decision:
                if errors:
                    raise RuntimeError("another part of the group failed")
                return decide(replace(situation, rows=situation.rows + first))

            stage = Stage(env, "train", [task] * env.num_envs, [range(env.num_envs)])
            try:
                return self._attempt(stage, decide_for_part, episodes[first : first + size], draws, MemoryJournal())
            except BaseException as error:
                errors.append(error)
                raise

        parts = list[Future[Columns]]()
        try:
            for first in range(0, len(episodes), size):
                parts.append(self._sets.start(task, partial(play, first), deadline - time.monotonic()))
        except BaseException as error:
            errors.append(error)
        wait(parts)
        if errors:
            raise errors[0]
        rows = [part.result() for part in parts]
        return {name: np.concatenate([each[name] for each in rows]) for name in rows[0]}

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
        return self._build_envs("train", [task] * rollout.environments_of_part, min(rollout.env_processes, 1))
