"""Groups of conversations that one version of an agent plays side by side, each as it comes."""

from collections.abc import Sequence
from functools import partial

from embodyflow.agents.chat.call_journal import CallJournal
from embodyflow.agents.episode import Faults
from embodyflow.agents.tools.tool_runner import ToolRunner
from embodyflow.data.batches import Columns
from embodyflow.data.metrics import Metric, total
from embodyflow.data.rows_file import Journal
from embodyflow.rollouts.agents.agent_rollout import AgentRollout, Services
from embodyflow.rollouts.agents.agent_rows import Played, columns_of_episodes
from embodyflow.rollouts.language.language_rollout import Question, ids_of
from embodyflow.rollouts.streaming.language_groups import LanguageGroups


class AgentGroups(LanguageGroups, AgentRollout):
    """Implements :class:`~embodyflow.nodes.engines.GroupEngine`.

    The turns of the model and the answers of tools are kept beside the journal as they come, for a later attempt.
    """

    def begin(self) -> None:
        """Begin to play groups."""
        super().begin()
        self._runner = ToolRunner()
        self._faults, self._reported = Faults(), dict[str, int]()

    def fault_metrics(self) -> dict[str, Metric]:
        """Return counts since the last call, of whichever groups were played; episodes in flight go on counting."""
        before, faults = self._reported, self._faults
        self._reported = {
            "perf/tool_retries": faults.retries,
            "perf/redrawn_episodes": faults.redraws,
            "perf/rejected_episodes": faults.rejections,
            "perf/tokens_read": self._conductor.counts.read,
        }
        return {name: total(count - before.get(name, 0)) for name, count in self._reported.items()}

    def _play_beside_others(
        self, questions: Sequence[Question], draws: tuple[int | str, ...], journal: Journal, timeout: float
    ) -> Columns:
        services = Services(self._runner, CallJournal(journal.beside("calls")))

        async def play(question: Question, number: int) -> Played:
            return await self._play(self._conductor, number, question, "train", draws, services)

        played: list[Played] = self._run_group([partial(play, question) for question in questions], journal, timeout)
        return {**ids_of(questions), **columns_of_episodes(played, self._agent.agents)}
