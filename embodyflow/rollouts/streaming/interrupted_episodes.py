"""Groups of episodes that go on with newer weights, between two decisions, as soon as these are published."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from embodyflow.data.batches import Columns
from embodyflow.data.published_weights import views_of
from embodyflow.data.rows_file import Journal
from embodyflow.data.streaming.swaps import LoadWeights, SwapLog, Weights
from embodyflow.policies.base import ActingPolicy, Decision
from embodyflow.policies.weight_copies import copy_weights
from embodyflow.rollouts.embodied.episode_turns import Situation
from embodyflow.rollouts.group_rollout import rows_of_group
from embodyflow.rollouts.streaming.embodied_groups import EmbodiedGroups
from embodyflow.rollouts.streaming.policy_versions import PolicyVersions
from embodyflow.rollouts.streaming.shared_decisions import SharedDecisions
from embodyflow.rollouts.streaming.swap_journal import SwapJournal
from embodyflow.seeding import derive_seed

VERSION = "token_version"


@dataclass(frozen=True)
class _Actor:
    """Implements :class:`~embodyflow.rollouts.streaming.policy_versions.Actor`."""

    policy: ActingPolicy
    decisions: SharedDecisions

    def load(self, weights: Weights) -> None:
        copy_weights(self.policy.model, weights, views_of(weights))


class InterruptedEmbodiedGroups(EmbodiedGroups):
    """Implements :class:`~embodyflow.nodes.engines.InterruptibleGroupEngine`.

    It has a policy for each version that decides, at most as many as versions may act at a time.
    """

    def begin(self) -> None:
        """Begin to play groups."""
        self._spare = [self.policy]
        self._versions = PolicyVersions(self._build_actor, self.config.rollout.max_staleness + 1)

    def end(self) -> None:
        """Cancel the groups that are still played: each ends at its next decision."""
        self._versions.end()

    def offer(self, versions: Mapping[int, LoadWeights]) -> None:
        """Let all groups go on with the newest of these versions."""
        self._versions.offer(versions)

    def play_group(
        self, seed: int, node_id: str, index: int, attempt: int, journal: Journal, timeout: float
    ) -> Columns:
        """Play a group beside others; may be called from several threads."""
        deadline, policies, log = time.monotonic() + timeout, self._versions, SwapJournal(journal.beside("swaps"))
        iteration, episodes = rows_of_group(self.config, index, attempt, partial(self.training_episodes, seed))
        draws = (seed, iteration, node_id)
        seeds = np.array([derive_seed(*draws, episode.row) for episode in episodes])
        versions = np.zeros((len(episodes), self.config.num_decisions), np.int32)
        choosing = threading.Lock()  # the parts of a group share its record

        def decide_as(version: int, situation: Situation) -> Decision:
            assert situation.noise is not None, "episodes for training are sampled"
            with policies.borrow(version, deadline) as decisions:
                return decisions.decide(situation.observation, situation.noise)

        def decide(situation: Situation) -> Decision:
            rows, t = situation.rows, situation.t
            with choosing:
                versions[rows, t] = chosen = _choose(log, seeds[rows], t, policies.newest)
            return _by_version(chosen, situation, decide_as)

        columns = self._play_beside_others(episodes, draws, decide, timeout)
        decided = columns["loss_mask"].any(axis=-1)  # with a goal that was replaced there may be more
        columns[VERSION] = np.where(decided, versions, 0)[..., None]
        columns["policy_version"] = versions[:, 0].astype(np.int64)
        return columns

    def _build_actor(self) -> _Actor:
        policy = self._spare.pop() if self._spare else self._build_policy()
        return _Actor(policy, self._shared_decisions(policy))


def _choose(log: SwapLog, seeds: np.ndarray, t: np.ndarray, newest: int) -> np.ndarray:
    """Return the version that makes each decision, int64 ``[n]``, and record it.

    It is the newest where the record says nothing.
    """
    chosen = []
    for seed, decision in zip(seeds.tolist(), t.tolist(), strict=True):
        recorded = log.recorded(seed, decision)
        chosen.append(newest if recorded is None else recorded)
        log.add(seed, decision, chosen[-1])
    return np.array(chosen)


def _by_version(versions: np.ndarray, situation: Situation, decide: Callable[[int, Situation], Decision]) -> Decision:
    """Decide for the rows of each version apart: after a kill in the middle of a change the record may have two."""
    parts, order = list[Decision](), list[int]()
    for version in np.unique(versions).tolist():
        rows = np.flatnonzero(versions == version)
        parts.append(decide(version, _part_of(situation, rows)))
        order += rows.tolist()
    back = np.argsort(order)
    return Decision(
        tokens=np.concatenate([part.tokens for part in parts])[back],
        log_probs=np.concatenate([part.log_probs for part in parts])[back],
        actions=np.concatenate([part.actions for part in parts])[back],
    )


def _part_of(situation: Situation, rows: np.ndarray) -> Situation:
    noise = situation.noise
    return replace(
        situation,
        rows=situation.rows[rows],
        t=situation.t[rows],
        observation={name: values[rows] for name, values in situation.observation.items()},
        noise=None if noise is None else noise[rows],
    )
