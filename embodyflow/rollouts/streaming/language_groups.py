"""Groups of responses that one version of a language model plays side by side, each as it comes."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from embodyflow.agents.conducting.open_ended import OpenEnded
from embodyflow.data.batches import Columns
from embodyflow.data.rows_file import Journal
from embodyflow.errors import ConfigError
from embodyflow.generation.interface import Completion, ConversationEngine, GenerationEngine, Request
from embodyflow.rollouts.group_rollout import REROLL_STRIDE
from embodyflow.rollouts.language.language_rollout import LanguageRollout, Question, responses_of
from embodyflow.rollouts.language.segments import version_column

Workflow: TypeAlias = Callable[[int], Awaitable[Any]]
"""A response or an episode to play, given the number of its conversation."""


class LanguageGroups(LanguageRollout):
    """Implements :class:`~embodyflow.nodes.engines.GroupEngine`.

    A group has the prompt, the draws and the ids of its place in the run, as if whole iterations were played. A group
    that is drawn again keeps its prompt and gets other draws and ids. So groups that take long are not exchanged for
    others.
    """

    _conductor: OpenEnded[Any]

    def begin(self) -> None:
        """Begin to play groups."""
        rollout = self.config.rollout
        num_groups = min(rollout.groups_in_flight, rollout.num_groups * (rollout.max_staleness + 1))
        self._conductor = self._open_conductor(num_groups * rollout.group_size)

    def end(self) -> None:
        """Cancel the groups that are still played, so that other weights can be loaded."""
        self._conductor.close()

    def play_group(
        self, seed: int, node_id: str, index: int, attempt: int, journal: Journal, timeout: float
    ) -> Columns:
        """Play a group beside others; may be called from several threads."""
        iteration, questions = self._group(seed, index, attempt)
        return self._play_beside_others(questions, (seed, iteration, node_id), journal, timeout)

    def _group(self, seed: int, index: int, attempt: int) -> tuple[int, list[Question]]:
        """Return the questions of a group, and the iteration that it belongs to by its index."""
        rollout, num_rows = self.config.rollout, self.config.rows_per_iteration
        before, place = divmod(index, rollout.num_groups)
        whole = self.training_episodes(seed, before + 1)
        stride = attempt * REROLL_STRIDE
        return before + 1, [
            replace(each, row=each.row + attempt * num_rows, uid=each.uid + stride, group_id=each.group_id + stride)
            for each in whole[place * rollout.group_size : (place + 1) * rollout.group_size]
        ]

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
