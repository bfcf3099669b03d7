"""Agent jobs that are small enough for a test, and a workflow that calls its tool whatever the model writes."""

import asyncio
import functools
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from language_jobs import TINY as TINY_LANGUAGE

from embodyflow.agents.episode import Episode, EpisodeContext
from embodyflow.agents.tools.tool import build_tools, close_tools
from embodyflow.agents.workflow import ChatEngine
from embodyflow.config.agents.agent import AgentConfig, AgentJobConfig
from embodyflow.config.composition.compose import compose_config
from embodyflow.prompts.calculator import build_tokenizer
from embodyflow.prompts.prompts import Prompt
from embodyflow.rewards.interface import Score

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


def agent_words(*overrides: str) -> list[str]:
    """Return the words of the tiny run with further overrides, of which later ones win."""
    chosen = {override.partition("=")[0]: override for override in (*TINY, *overrides)}
    return [chosen.pop("experiment"), *chosen.values()]


@functools.cache  # the result is frozen, and many tests need the same one
def agent_config(*overrides: str) -> AgentJobConfig:
    """Compose the tiny run with further overrides, of which later ones win."""
    config = compose_config(agent_words(*overrides))
    assert isinstance(config, AgentJobConfig)
    return config


def interview_config(tool: str = "look_up", *overrides: str) -> AgentJobConfig:
    """Compose a tiny run of :class:`Interview` with one of the tools below."""
    limits = "{function: agent_jobs:" + tool + ", timeout: 2.0, retries: 2, backoff: 0.0}"
    return agent_config(*WORDS, f"rollout.agent.tools=[{limits}]", *overrides)


def run_words(*overrides: str) -> list[str]:
    """Return the words of a tiny run that trains in every iteration, without its name and its iterations."""
    words = ("rollout.group_size=4", "filter.drop_uniform=false", "evaluation.num_prompts=2", "warm_start=null")
    whole = agent_words(*words, "cluster.start_timeout=300", *overrides)
    return [word for word in whole if not word.startswith(("run_id=", "iterations="))]


def tools_word(*tools: dict[str, Any]) -> str:
    """Return the word of a run that chooses tools."""
    return f"rollout.agent.tools={_in_hydras_grammar(list(tools))}"


def _in_hydras_grammar(value: Any) -> str:
    """Return JSON whose keys have no quotes."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}: {_in_hydras_grammar(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_in_hydras_grammar, value)) + "]"
    return json.dumps(value)


def forgetful_words(*overrides: str) -> list[str]:
    """Return the words of a tiny run of :class:`Forgetful`: ten turns of two agents, in up to six contexts."""
    words = (
        *("rollout.agent.workflow=agent_jobs:Forgetful", "policy.tokenizer=agent_jobs:forgetful_tokenizer"),
        *(
            "rollout.agent.max_turns=5",
            "rollout.max_response_tokens=400",
            "policy.scratch.max_position_embeddings=416",
            "rollout.agent.tools=[]",
        ),
        *("warm_start=null", f"rollout.agent.max_turn_tokens={TURN_TOKENS}"),
    )
    return agent_words(*words, *overrides)


class Interview:
    """Implements :class:`~embodyflow.agents.workflow.RolloutWorkflow`: tools answer the model in turn."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._tools = list(build_tools(config.tools).values())

    def close(self) -> None:
        """Close the tools."""
        close_tools(self._tools)

    async def run(self, engine: ChatEngine, row: Prompt, context: EpisodeContext) -> Episode:
        """Play one episode; its reward is the number of digits that the model wrote."""
        conversation = engine.chat(row, [], context)
        text = answer = ""
        for turn in range(self._config.max_turns):
            if turn and not conversation.give("tool", [answer]):
                break
            text += await conversation.reply(self._config.max_turn_tokens)
            answer = await context.call(self._tools[turn % len(self._tools)], {"place": f"{context.uid}/{turn}"})
        digits = sum(letter.isdigit() for letter in text)
        return conversation.episode(reward=float(digits), success=digits % 2 == 0)


class Forgetful:
    """Implements :class:`~embodyflow.agents.workflow.RolloutWorkflow`: two agents, whose earlier turns are cut short.

    Each agent has ``max_turns`` turns. A tool and a user answer by turns. :func:`forgetful_tokenizer` begins a context
    whenever it is the user. The reward of a turn is the number of digits in it.
    """

    def __init__(self, config: AgentConfig) -> None:
        self._config = config

    async def run(self, engine: ChatEngine, row: Prompt, context: EpisodeContext) -> Episode:
        """Play one episode."""
        chats = [engine.chat(row, [], context), engine.chat(row, [], context)]
        rewards = []
        for turn in range(self._config.max_turns):
            for chat in chats:
                if turn and not chat.give("user" if turn % 2 else "tool", ["7*5="]):
                    return chat.episode(0.5, turn_rewards=rewards)
                text = await chat.reply(self._config.max_turn_tokens)
                rewards.append(float(sum(letter.isdigit() for letter in text)))
        return chats[0].episode(0.5, turn_rewards=rewards)


def forgetful_tokenizer() -> Any:
    """Return the calculator's tokenizer with a template that cuts turns before the user's last message short."""
    tokenizer = build_tokenizer()
    tokenizer.chat_template = (
        "{% set last = namespace(query=0) %}"
        "{% for m in messages if m['role'] == 'user' %}{% set last.query = loop.length %}{% endfor %}"
        "{% set seen = namespace(users=0) %}{{ bos_token }}{% for m in messages %}<{{ m['role'] }}>"
        "{% if m['role'] == 'user' %}{% set seen.users = seen.users + 1 %}{% endif %}"
        "{% if m['role'] == 'assistant' and seen.users < last.query %}{{ m['content'][:1] }}"
        "{% else %}{{ m['content'] }}{% endif %}<end>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    return tokenizer


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


async def recall(place: str) -> str:
    """Answer with the place, after the faults that it still has.

    Args:
        place: Place.
    """
    return look_up(place)


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


def never_judged(episode: Episode) -> Score:
    """Raise: the workflow of this test does not ask the reward function."""
    raise AssertionError("the workflow asked the reward function")
