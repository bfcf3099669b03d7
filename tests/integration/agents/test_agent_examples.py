"""Scripts of packages for agents play episodes as they are."""

from __future__ import annotations

import asyncio
import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from episode_clients import CALL, ROW, TOKENIZER, KnownModel, context_of, decode

from embodyflow.agents.chat.transcript import Origin
from embodyflow.agents.episode import Episode
from embodyflow.agents.programs.program import Program
from embodyflow.agents.workflow import ChatEngine
from embodyflow.prompts.word_tokenizer import word_tokenizer

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "agents"


def play(script: str, package: str, *turns: str, tokenizer: Any = TOKENIZER) -> tuple[Episode, KnownModel]:
    try:
        version(package)
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed; the extra agents has it")
    model = KnownModel(*turns, tokenizer=tokenizer)
    context = context_of(program=["python", str(EXAMPLES / script)], max_turns=3)

    async def run() -> Episode:
        engine = ChatEngine(model, tokenizer, 20_000, 40_000)
        return await Program(context.config).run(engine, ROW, context)

    return asyncio.run(run()), model


@pytest.mark.parametrize(
    ("script", "package"), [("with_openai.py", "openai"), ("with_openai_agents.py", "openai-agents")]
)
def test_an_agent_calls_its_tool_and_answers(script: str, package: str) -> None:
    episode, model = play(script, package, CALL, "## 408")

    assert (episode.reward, episode.success, episode.finished) == (1.0, True, True)
    assert decode(model.prompts[1]) == (
        f"<bos>calculate<user>12*34=<end><assistant>{CALL}<end><tool>408<end><assistant>"
    )


def test_each_step_of_smolagents_is_a_context() -> None:
    """It writes the model's turns in words of its own, so no request continues the one before."""
    letters = word_tokenizer(
        [*map(chr, range(32, 127)), "\n"], end="<end>", roles=("<assistant>",), chat_template=TOKENIZER.chat_template
    )
    call = {"name": "final_answer", "arguments": {"answer": "## 408"}}
    turns = CALL, f"<tool_call>{json.dumps(call)}</tool_call>"
    episode, model = play("with_smolagents.py", "smolagents", *turns, tokenizer=letters)

    assert (episode.reward, episode.success, episode.finished) == (1.0, True, True)
    assert "408" in letters.decode(model.prompts[1]) and episode.transcript.num_contexts == 2
    written = [letters.decode(each.tokens) for each in episode.transcript.segments if each.origin == Origin.MODEL]
    assert written == [f"{turn}<end>" for turn in turns]
