"""Groups whose responses and turns go on with newer weights as soon as these are published."""

from collections.abc import Mapping, Sequence
from typing import Any

from embodyflow.agents.conducting.interrupted import Interrupted
from embodyflow.data.rows_file import Journal
from embodyflow.data.streaming.swaps import LoadWeights
from embodyflow.generation.conversations.swapping import SwappingEngine
from embodyflow.generation.transformers_engine.engine import HFEngine
from embodyflow.rollouts.streaming.agent_groups import AgentGroups
from embodyflow.rollouts.streaming.language_groups import LanguageGroups, Workflow
from embodyflow.rollouts.streaming.swap_journal import SwapJournal


class InterruptedLanguageGroups(LanguageGroups):
    """Implements :class:`~embodyflow.nodes.engines.InterruptibleGroupEngine`.

    It has an engine for each version that samples. Usually these are two: the newest, and the one that is loaded next.
    """

    _conductor: Interrupted[Any]

    def offer(self, versions: Mapping[int, LoadWeights]) -> None:
        """Let all groups go on with the newest of these versions."""
        self._conductor.offer(versions)

    def _open_conductor(self, num_episodes: int) -> Interrupted[Any]:
        engine = SwappingEngine(
            self._build_invariant, self._load, keeps_cache=self.config.rollout.interrupt.cache == "keep"
        )
        return Interrupted(engine, self._sampling(is_greedy=False), num_episodes)

    def _build_invariant(self) -> HFEngine:
        engine = self._invariant(self._build_engine())
        assert isinstance(engine, HFEngine), "the configuration allows no other engine"
        return engine

    def _run_group(self, workflows: Sequence[Workflow], journal: Journal, timeout: float) -> list[Any]:
        return self._conductor.play_group(workflows, SwapJournal(journal.beside("swaps")), timeout)


class InterruptedAgentGroups(InterruptedLanguageGroups, AgentGroups):
    """The same for agents: weights change between tokens and between turns."""
