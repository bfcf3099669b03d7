"""Episodes whose tools take very different times: the stand-in job of ``benchmarks/language/streaming.py``."""

import asyncio
import math

from embodyflow.agents.episode import Episode, EpisodeContext
from embodyflow.agents.tools.tool import build_tools
from embodyflow.agents.workflow import ChatEngine
from embodyflow.config.agents.agent import AgentConfig
from embodyflow.prompts.prompts import Prompt
from embodyflow.seeding import derive_rng

MEDIAN, SIGMA, SHORTEST, LONGEST = 0.15, 1.2, 0.05, 2.0
"""Log-normal time of a call in seconds, and its bounds."""


async def wait(place: str) -> str:
    """Answer after a time that the place decides.

    Args:
        place: Name of the episode, and number of the call.
    """
    seconds = math.exp(derive_rng(place).normal(math.log(MEDIAN), SIGMA))
    await asyncio.sleep(min(max(seconds, SHORTEST), LONGEST))
    return place


class Waiter:
    """Implements :class:`~embodyflow.agents.workflow.RolloutWorkflow`: a slow tool answers each turn of the model."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        [self._tool] = build_tools(config.tools).values()

    async def run(self, engine: ChatEngine, row: Prompt, context: EpisodeContext) -> Episode:
        """Play one episode; its reward is the number of digits that the model wrote."""
        conversation, text = engine.chat(row, [], context), ""
        for turn in range(self._config.max_turns):
            text += await conversation.reply(self._config.max_turn_tokens)
            answer = await context.call(self._tool, {"place": f"{context.uid}/{turn}"})
            if not conversation.give("tool", [answer]):
                break
        digits = sum(letter.isdigit() for letter in text)
        return conversation.episode(reward=float(digits), success=digits % 2 == 0)
