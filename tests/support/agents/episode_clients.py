"""Clients of the server that programs reach the model by, with a model whose turns are known."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from embodyflow.agents.chat.call_journal import CallJournal
from embodyflow.agents.chat.transcript import Tokens
from embodyflow.agents.endpoint.server import EpisodeServer
from embodyflow.agents.endpoint.session import Session
from embodyflow.agents.episode import Episode, EpisodeContext, Faults
from embodyflow.agents.tools.tool_runner import ToolRunner
from embodyflow.agents.workflow import ChatEngine
from embodyflow.config.agents.agent import AgentConfig
from embodyflow.generation.interface import Completion
from embodyflow.prompts.calculator import build_tokenizer
from embodyflow.prompts.prompts import Prompt
from embodyflow.rewards.interface import Score

TOKENIZER = build_tokenizer()
ROW = Prompt(7, None, [{"role": "user", "content": "12*34="}], "408", "calculator")
QUESTION = {"role": "user", "content": "12*34="}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "calculate",
            "description": "Compute.",
            "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
        },
    }
]
CALL = '<tool_call>{"name": "calculate", "arguments": {"expression": "12*34"}}</tool_call>'


class KnownModel:
    """A model that writes given texts, each ended by the end token, and records the tokens that it continues."""

    def __init__(self, *turns: str, tokenizer: Any = TOKENIZER) -> None:
        self.turns, self.prompts, self.tokenizer = list(turns), list[Tokens](), tokenizer
        self.wait: Callable[[], Awaitable[None]] | None = None

    async def generate(self, prompt_ids: Tokens, max_tokens: int) -> Completion:
        self.prompts.append(prompt_ids)
        if self.wait is not None:
            await self.wait()
        tokens = (*encode(self.turns.pop(0), self.tokenizer), self.tokenizer.eos_token_id)
        reason = "stop" if len(tokens) <= max_tokens else "length"
        tokens = tokens[:max_tokens]
        return Completion(tokens, tuple(-0.5 - number for number in range(len(tokens))), reason, 3)


def encode(text: str, tokenizer: Any = TOKENIZER) -> Tokens:
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def decode(tokens: Sequence[int]) -> str:
    return TOKENIZER.decode(tokens, skip_special_tokens=False)


def _no_reward_function(episode: Episode) -> Score:
    raise AssertionError("a program's episode is judged after it has ended")


def context_of(**config: Any) -> EpisodeContext:
    agent = AgentConfig(**{"max_turns": 4, **config})
    return EpisodeContext(5, 11, "train", 0, agent, CallJournal(None), ToolRunner(), Faults(), _no_reward_function)


def engine_of(model: KnownModel, max_tokens: int = 60, temperature: float = 1.0) -> ChatEngine:
    return ChatEngine(model, model.tokenizer, 24, max_tokens, temperature=temperature)


def session_of(model: KnownModel, context: EpisodeContext | None = None, **engine: Any) -> Session:
    return Session(engine_of(model, **engine), ROW, context or context_of(), lambda begins: None)


@asynccontextmanager
async def client_of(session: Session, server: EpisodeServer | None = None):
    """Serve a session; yield an HTTP client with its key."""
    async with (server or EpisodeServer()).serve(session) as settings, session:
        headers = {"Authorization": f"Bearer {settings.api_key}"}
        async with httpx.AsyncClient(base_url=settings.base_url, headers=headers, trust_env=False) as client:
            yield client
