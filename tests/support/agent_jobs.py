"""Agent jobs that are small enough for a test, and a workflow that calls its tool whatever the model writes."""

import asyncio
import json
import os
import signal
import time
from pathlib import Path

from language_jobs import TINY as TINY_LANGUAGE

from embodyflow.agents.episode import Episode, EpisodeContext
from embodyflow.agents.tool import build_tools
from embodyflow.agents.workflow import ChatEngine
from embodyflow.config.agent import AgentConfig, AgentJobConfig
from embodyflow.config.composition.compose import compose_config
from embodyflow.prompts.prompts import Prompt

TURN_TOKENS = 4
TINY = (
    *(word for word in TINY_LANGUAGE if not word.startswith(("experiment", "rollout.max_response_tokens"))),
    *("experiment=calculator", "rollout.max_response_tokens=110"),
)
WORDS = (
    *("rollout.agent.workflow=agent_jobs:Interview", "rollout.agent.max_turns=8", "warm_start=null"),
    f"rollout.agent.max_turn_tokens={TURN_TOKENS}",
)
FAULTS: dict[str, list[str]] = {}
"""Faults that :func:`look_up` still has, by the place that it is asked for."""


def agent_config(*overrides: str) -> AgentJobConfig:
    """Compose the tiny run with further overrides, of which later ones win."""
    chosen = {override.partition("=")[0]: override for override in (*TINY, *overrides)}
    config = compose_config([chosen.pop("experiment"), *chosen.values()])
    assert isinstance(config, AgentJobConfig)
    return config


def interview_config(tool: str = "look_up", *overrides: str) -> AgentJobConfig:
    """Compose a tiny run of :class:`Interview` with one of the tools below."""
    limits = "{function: agent_jobs:" + tool + ", timeout: 2.0, retries: 2}"
    return agent_config(*WORDS, f"rollout.agent.tools=[{limits}]", *overrides)


class Interview:
    """Implements :class:`~embodyflow.agents.workflow.RolloutWorkflow`: the only tool answers each turn of the model."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        [self._tool] = build_tools(config.tools).values()

    async def run(self, engine: ChatEngine, row: Prompt, context: EpisodeContext) -> Episode:
        """Play one episode; its reward is the number of digits that the model wrote."""
        conversation = engine.chat(row, [], context)
        text = answer = ""
        for turn in range(self._config.max_turns):
            if turn and not conversation.give("tool", [answer]):
                break
            text += await conversation.reply(self._config.max_turn_tokens)
            answer = await context.call(self._tool, {"place": f"{context.uid}/{turn}"})
        digits = sum(letter.isdigit() for letter in text)
        return conversation.episode(reward=float(digits), success=digits % 2 == 0)


def look_up(place: str) -> str:
    """Answer with the place, after the faults that it still has.

    Args:
        place: Place.
    """
    if faults := FAULTS.get(place):
        match faults.pop():
            case "time-out":
                time.sleep(4)
            case "connection":
                raise ConnectionResetError("reset by peer")
            case "server":
                raise RuntimeError("503 Service Unavailable")
            case "broken answer":
                json.loads("<html>")
            case "dead sandbox":
                raise BrokenPipeError("the sandbox is gone")
    return place.replace("/", "*")


async def ask_again(place: str) -> str:
    """Answer differently each time; end the process where ``KILL_AT`` says so.

    Args:
        place: Place.
    """
    await asyncio.sleep(0)
    asked = Path(os.environ["ASKED"])
    number = len(asked.read_text().splitlines()) if asked.exists() else 0
    if os.environ.get("KILL_AT") == str(number):
        os.environ.pop("KILL_AT")  # where the process is that of the test
        if os.environ.get("KILL_BY") == "interrupt":
            raise KeyboardInterrupt
        marker = asked.with_suffix(".killed")
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    with asked.open("a") as file:
        file.write(f"{place}\n")
    return str(number)
