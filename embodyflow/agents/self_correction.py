"""A workflow that tells the model that its answer is wrong, and lets it answer again."""

from embodyflow.agents.episode import Episode, EpisodeContext
from embodyflow.agents.workflow import ChatEngine
from embodyflow.config.agents.agent import AgentConfig
from embodyflow.prompts.prompts import Prompt


class SelfCorrection:
    """Implements :class:`~embodyflow.agents.workflow.RolloutWorkflow`.

    The checker is the job's reward function, so any data and any reward go with it. The last answer counts. The metrics
    ``rollout/success_turn_<k>`` are the accuracies at turn k of Kumar et al. 2024, arXiv:2409.12917; their difference
    is what the model gains by correcting itself.

    Args:
        config: Section ``rollout.agent``; ``max_turns`` bounds the answers and ``feedback`` is said after a wrong one.
    """

    def __init__(self, config: AgentConfig) -> None:
        self._config = config

    async def run(self, engine: ChatEngine, row: Prompt, context: EpisodeContext) -> Episode:
        """Play one episode: answers of the model, until one is right or the turns are used up."""
        conversation = engine.chat(row, [], context)
        for turn in range(1, self._config.max_turns + 1):
            await conversation.reply(self._config.max_turn_tokens)
            score = await context.judge(conversation.episode())
            if score.correct or not conversation.finished or turn == self._config.max_turns:
                break
            if not conversation.give("user", [self._config.feedback]):
                break
        return conversation.episode(score.reward, score.correct)
