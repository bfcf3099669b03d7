"""Sessions with MCP servers that fail: what a failure costs, and that the next call has another session."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from faulty_mcp_tools import http_server, http_tools, plan, start_server, stdio_tools
from server_ports import server_port
from waiting import eventually

from embodyflow.agents.tools.tool import ModelTool, build_tools, close_tools
from embodyflow.agents.tools.tool_runner import Answer, ToolRunner
from embodyflow.config.agents.agent import AgentConfig

pytestmark = pytest.mark.integration

Tools = dict[str, ModelTool]


@pytest.fixture
def open_tools() -> Iterator[list[Tools]]:
    """Tools to close after the test."""
    pytest.importorskip("mcp", reason="needs the extra mcp")
    opened = list[Tools]()
    yield opened
    for tools in opened:
        close_tools(tools.values())


def build(opened: list[Tools], config: dict[str, Any]) -> Tools:
    tools = build_tools(AgentConfig.model_validate({"max_turns": 1, "tools": [config]}).tools)
    opened.append(tools)
    return tools


def ask_all(tools: Tools, calls: Sequence[tuple[str, str]]) -> list[Answer]:
    """Call tools side by side, with the place that each is asked for."""

    async def run() -> list[Answer]:
        runner = ToolRunner()
        return await asyncio.gather(*(runner.call(tools[name], {"place": place}) for name, place in calls))

    return asyncio.run(run())


@pytest.mark.parametrize("fault", ["server_error", "disconnect"])
def test_a_failed_request_over_http_fails_no_other(tmp_path: Path, open_tools: list[Tools], fault: str) -> None:
    port, calls = server_port(), [(fault, f"{number}/0") for number in range(8)]
    with http_server(tmp_path, port, fault):
        tools = build(open_tools, http_tools(port, timeout=60, backoff=0.01))
        for place in ("2/0", "5/0"):
            plan(tmp_path, place)

        answers = ask_all(tools, calls)

    assert [answer.text for answer in answers] == [f"{number}*0" for number in range(8)]
    assert [answer.retries for answer in answers] == [0, 0, 1, 0, 0, 1, 0, 0]


def test_a_server_that_was_restarted_between_calls_gets_new_sessions(tmp_path: Path, open_tools: list[Tools]) -> None:
    """It does not know the sessions of its predecessor, of which there are eight."""
    port, calls = server_port(), [("look_up", f"{number}/0") for number in range(8)]
    with http_server(tmp_path, port, "look_up"):
        tools = build(open_tools, http_tools(port, timeout=60, retries=1, backoff=0.01))
        assert {answer.retries for answer in ask_all(tools, calls)} == {0}
    with http_server(tmp_path, port, "look_up"):
        assert {answer.outcome for answer in ask_all(tools, calls)} == {"answer"}
        assert {answer.retries for answer in ask_all(tools, calls)} == {0}


def test_calls_wait_for_a_server_that_starts_again(tmp_path: Path, open_tools: list[Tools]) -> None:
    port = server_port()
    with http_server(tmp_path, port, "look_up"):
        tools = build(open_tools, http_tools(port, timeout=60, retries=9, backoff=0.1))

    async def ask() -> Answer:
        call = asyncio.create_task(ToolRunner().call(tools["look_up"], {"place": "1/0"}))
        await asyncio.sleep(0.3)
        process = await asyncio.to_thread(start_server, tmp_path, port, "look_up")
        try:
            return await call
        finally:
            process.kill()
            process.wait()

    answer = asyncio.run(ask())

    assert answer.text == "1*0" and answer.retries >= 1


def test_a_call_that_takes_too_long_ends_the_process_after_the_calls_beside_it(
    tmp_path: Path, open_tools: list[Tools]
) -> None:
    before = set(psutil.Process().children())
    tools = build(open_tools, stdio_tools(tmp_path, "stall", "slow", timeout=60, retries=0))
    [first] = set(psutil.Process().children()) - before
    tools["stall"].config = tools["stall"].config.model_copy(update={"timeout": 0.3})
    for place in ("1/0", "2/0"):
        plan(tmp_path, place)

    answers = ask_all(tools, [("stall", "1/0"), ("slow", "2/0")])

    assert [answer.outcome for answer in answers] == ["failure", "answer"] and answers[1].text == "2*0"
    assert eventually(lambda: not first.is_running(), 20)
    assert ask_all(tools, [("slow", "3/0")]) == [Answer("answer", "3*0")]
