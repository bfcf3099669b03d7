"""Groups of conversations that one version of an agent plays side by side, each as it comes."""

from collections.abc import Sequence
from functools import partial

from embodyflow.agents.call_journal import CallJournal
from embodyflow.agents.tool_runner import ToolRunner
from embodyflow.data.batches import Columns
from embodyflow.data.metrics import Metric
from embodyflow.data.rows_file import Journal
from embodyflow.rollouts.agent_rollout import AgentRollout, Services
from embodyflow.rollouts.agent_rows import Played, columns_of_episodes
from embodyflow.rollouts.language_rollout import Question, ids_of
from embodyflow.rollouts.streaming.language_groups import LanguageGroups


class AgentGroups(LanguageGroups, AgentRollout):
    """Implements :class:`~embodyflow.nodes.engines.GroupEngine`.

    The turns of the model and the answers of tools are kept beside the journal as they come, for a later attempt.
    """

    def begin(self) -> None:
        """Begin to play groups."""
        super().begin()
        self._runner, self._num_read = ToolRunner(), 0

    def fault_metrics(self) -> dict[str, Metric]:
        """Return counts since the last call, of whichever groups were played."""
        read = self._conductor.counts.read
        self._tokens_read, self._num_read = read - self._num_read, read
        return super().fault_metrics()

    def _play_beside_others(
        self, questions: Sequence[Question], draws: tuple[int | str, ...], journal: Journal, timeout: float
    ) -> Columns:
        services = Services(self._runner, CallJournal(journal.beside("calls")))

        async def play(question: Question, number: int) -> Played:
            return await self._play(self._conductor, number, question, "train", draws, services)

        played = self._conductor.play([partial(play, question) for question in questions], timeout)
        return {**ids_of(questions), **columns_of_episodes(played, self._agent.agents)}
