"""Groups of responses that one version of a language model plays side by side, each as it comes."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from embodyflow.agents.conducting.open_ended import OpenEnded
from embodyflow.data.batches import Columns
from embodyflow.data.rows_file import Journal
from embodyflow.errors import ConfigError
from embodyflow.generation.interface import Completion, ConversationEngine, Request
from embodyflow.rollouts.group_rollout import REROLL_STRIDE
from embodyflow.rollouts.language.language_rollout import LanguageRollout, Question, responses_of


class LanguageGroups(LanguageRollout):
    """Implements :class:`~embodyflow.nodes.engines.GroupEngine`.

    A group has the prompt, the draws and the ids of its place in the run, as if whole iterations were played. A group
    that is drawn again keeps its prompt and gets other draws and ids. So groups that take long are not exchanged for
    others.
    """

    _conductor: OpenEnded[Any]

    def begin(self) -> None:
        """Begin to play groups.

        Raises:
            ConfigError: A group's log-probs would depend on the groups beside it.
        """
        engine, rollout = self._engine, self.config.rollout
        if not isinstance(engine, ConversationEngine) or not engine.is_batch_invariant():
            raise ConfigError(
                f"rollout.mode=streaming: on cluster.device={self.config.cluster.device} the engine's log-probs depend "
                "on the responses beside a group; allowed here is rollout.mode=iterations"
            )
        num_groups = min(rollout.groups_in_flight, rollout.num_groups * (rollout.max_staleness + 1))
        self._conductor = OpenEnded(engine, self._sampling(is_greedy=False), num_groups * rollout.group_size)

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

    def _play_beside_others(
        self, questions: Sequence[Question], draws: tuple[int | str, ...], journal: Journal, timeout: float
    ) -> Columns:
        del journal  # a response is sampled again as it was
        requests, conductor = self._requests(questions, "train", draws), self._conductor
        limit = self.config.rollout.max_response_tokens

        async def answer(request: Request, number: int) -> Completion:
            return await conductor.generate(number, request.prompt_ids, limit, request.seed)

        completions = conductor.play([partial(answer, request) for request in requests], timeout)
        return responses_of(questions, requests, completions)
