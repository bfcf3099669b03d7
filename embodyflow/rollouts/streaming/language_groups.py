"""Groups of responses that one version of a language model plays side by side, each as it comes."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Self, TypeAlias

from embodyflow.agents.conducting.open_ended import OpenEnded
from embodyflow.data.batches import Columns
from embodyflow.data.rows_file import Journal
from embodyflow.errors import ConfigError
from embodyflow.generation.interface import Completion, ConversationEngine, GenerationEngine, Request
from embodyflow.rollouts.group_rollout import rows_of_group
from embodyflow.rollouts.language.language_rollout import LanguageRollout, Question, responses_of
from embodyflow.rollouts.language.segments import version_column

Workflow: TypeAlias = Callable[[int], Awaitable[Any]]
"""A response or an episode to play, given the number of its conversation."""


class LanguageGroups(LanguageRollout):
    """Implements :class:`~embodyflow.nodes.engines.GroupEngine`."""

    _conductor: OpenEnded[Any]

    def for_another_version(self) -> Self:
        """Return an engine of its own."""
        return type(self)(self.config, self.rank, self.world_size)

    def begin(self) -> None:
        """Begin to play groups."""
        rollout = self.config.rollout
        num_groups = min(rollout.most_groups_in_flight, rollout.num_groups * (rollout.max_staleness + 1))
        self._conductor = self._open_conductor(num_groups * rollout.group_size)

    def end(self) -> None:
        """Cancel the groups that are still played, so that other weights can be loaded."""
        self._conductor.close()

    def play_group(
        self, seed: int, node_id: str, index: int, attempt: int, journal: Journal, timeout: float
    ) -> Columns:
        """Play a group beside others; may be called from several threads."""
        iteration, questions = rows_of_group(self.config, index, attempt, partial(self.training_episodes, seed))
        return self._play_beside_others(questions, (seed, iteration, node_id), journal, timeout)

    def _open_conductor(self, num_episodes: int) -> OpenEnded[Any]:
        return OpenEnded(self._invariant(self._engine), self._sampling(is_greedy=False), num_episodes)

    def _invariant(self, engine: GenerationEngine | None) -> ConversationEngine:
        """Return an engine that plays groups side by side.

        Raises:
            ConfigError: A group's log-probs would depend on the groups beside it.
        """
        if not isinstance(engine, ConversationEngine) or not engine.is_batch_invariant():
            raise ConfigError(
                f"rollout.mode=streaming: on cluster.device={self.config.cluster.device} the engine's log-probs depend "
                "on the responses beside a group; allowed here is rollout.mode=iterations"
            )
        return engine

    def _run_group(self, workflows: Sequence[Workflow], journal: Journal, timeout: float) -> list[Any]:
        """Run the workflows of a group beside others; each gets the number of its conversation."""
        del journal  # one version samples the group: what it sampled follows from its name
        return self._conductor.play(workflows, timeout)

    def _play_beside_others(
        self, questions: Sequence[Question], draws: tuple[int | str, ...], journal: Journal, timeout: float
    ) -> Columns:
        requests, conductor = self._requests(questions, "train", draws), self._conductor
        limit = self.config.rollout.max_response_tokens

        async def answer(request: Request, number: int) -> Completion:
            return await conductor.generate(number, request.prompt_ids, limit, request.seed)

        completions: list[Completion]
        completions = self._run_group([partial(answer, request) for request in requests], journal, timeout)
        versions = version_column(completions) if completions[0].versions else {}
        return responses_of(questions, requests, completions) | versions
