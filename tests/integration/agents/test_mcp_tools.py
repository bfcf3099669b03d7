"""Tools of a real MCP server: over stdin and stdout, and over HTTP."""

import asyncio
import importlib.metadata
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from server_ports import server_port
from waiting import eventually

from embodyflow.agents.tools.tool import OLDEST_MCP, build_tools, close_tools
from embodyflow.agents.tools.tool_runner import Answer, ToolRunner
from embodyflow.config.agents.agent import AgentConfig
from embodyflow.errors import ConfigError

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
SERVER = ROOT / "tests" / "support" / "agents" / "mcp_server.py"
COMMAND = [sys.executable, str(SERVER), "stdio"]


def tools_of(mcp, **limits):
    agent = AgentConfig.model_validate({"max_turns": 1, "tools": [{"mcp": mcp, **limits}]})
    return build_tools(agent.tools)


@pytest.mark.parametrize(
    ("tool", "message"),
    [
        ({"mcp": {}}, "needs either a command or a url"),
        ({"mcp": {"command": ["a"], "url": "http://b"}}, "needs either a command or a url"),
        ({"mcp": {"url": "b"}}, "must be an address such as http://localhost:8000, not b"),
        ({"mcp": {"command": []}}, "at least 1 item"),
        ({"mcp": {"command": ["a"]}, "function": "a:b"}, "needs either a function or mcp"),
        ({"timeout": 3}, "needs either a function or mcp"),
        ({"mcp": {"command": ["a"]}, "mistakes": ["a:b"]}, "allowed with mcp is mcp.on_error"),
    ],
)
def test_a_tool_has_one_origin(tool, message):
    with pytest.raises(ValueError, match=message):
        AgentConfig.model_validate({"max_turns": 1, "tools": [tool]})


def test_a_missing_package_is_named(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)  # a folder named mcp beside the run may be importable
    with pytest.raises(ConfigError, match=r"mcp is not installed; pip install 'embodyflow\[mcp\]'"):
        tools_of({"command": COMMAND})


def test_an_old_package_is_named(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.0.0")
    with pytest.raises(ConfigError, match=r"mcp 2\.0\.0 is too old, needed is 2\.3; pip install 'embodyflow\[mcp\]'"):
        tools_of({"command": COMMAND})
    assert f'mcp = ["mcp>={OLDEST_MCP},' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tools():
    pytest.importorskip("mcp", reason="needs the extra mcp")
    tools = tools_of({"command": COMMAND}, timeout=30)
    yield tools
    close_tools(tools.values())


def call(tools, name, runner=None, **arguments) -> Answer:
    return asyncio.run((runner or ToolRunner()).call(tools[name], arguments))  # another event loop each time


def test_schemas_are_the_servers(tools):
    assert list(tools) == ["add", "process", "fail", "draw"]
    function = tools["add"].schema["function"]
    assert function["description"].startswith("Add two numbers") and function["parameters"]["required"] == ["left"]


def test_calls_are_answered_and_wrong_arguments_are_mistakes(tools):
    assert call(tools, "add", left=2) == Answer("answer", "3")
    assert call(tools, "add", left="two").text == "error: add: left: 'two' is not of type 'integer'"
    assert call(tools, "add").outcome == "mistake"


def test_an_error_of_the_server_is_a_mistake_unless_the_configuration_says_otherwise(tools):
    answer = call(tools, "fail", how="this")
    assert answer.outcome == "mistake" and "cannot this" in answer.text
    config = tools["fail"].config
    strict = config.model_copy(update={"mcp": config.mcp.model_copy(update={"on_error": "failure"})})
    from embodyflow.agents.mcp.mcp_tool import McpTool

    listed = tools["fail"]._connection.list_tools(20)[2]
    failing = McpTool(listed, strict.model_copy(update={"retries": 1}), tools["fail"]._connection)
    answer = call({"fail": failing}, "fail", how="this")
    assert answer.outcome == "failure" and "cannot this" in answer.text and answer.retries == 1


def test_content_that_a_language_model_cannot_read_is_a_failure(tools):
    assert "content of type image; a language model reads text alone" in call(tools, "draw").text


def test_a_server_that_ended_is_started_again(tools):
    before = int(call(tools, "process").text)
    os.kill(before, signal.SIGKILL)
    answer = call(tools, "process")
    after = int(answer.text)

    assert answer.outcome == "answer" and answer.retries <= 1 and after != before
    assert call(tools, "fail", how="end").outcome == "failure"  # each attempt ends it
    assert int(call(tools, "process").text) not in (before, after)


def test_a_server_that_hangs_is_started_again(tools):
    call(tools, "process")
    hasty = tools["fail"].config.model_copy(update={"timeout": 0.5, "retries": 0})
    before, slow = int(call(tools, "process").text), tools["fail"]
    slow.config, config = hasty, slow.config
    try:
        assert call(tools, "fail", how="hang") == Answer("failure", "no answer within timeout=0.5 seconds")
    finally:
        slow.config = config
    # A call may still share the session while the one that took too long is being cancelled.
    assert eventually(lambda: int(call(tools, "process").text) != before, 20)
    assert eventually(lambda: not psutil.pid_exists(before), 10)


def test_the_process_ends_with_its_tools_and_with_its_worker(tools):
    """The worker is killed, so it cannot tell the server to end."""
    code = (
        "import asyncio, sys; from embodyflow.agents.tools.tool import build_tools\n"
        "from embodyflow.config.agents.agent import *\n"
        "from embodyflow.agents.tools.tool_runner import ToolRunner\n"
        f"config = ToolConfig(mcp={{'command': {COMMAND!r}, 'include': ['process']}})\n"
        "tools = build_tools([config]); assert list(tools) == ['process']\n"
        "print(asyncio.run(ToolRunner().call(tools['process'], {})).text, flush=True); sys.stdin.read()"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=SERVER.parents[2]
    )
    pid = int(worker.stdout.readline())
    assert psutil.pid_exists(pid)
    worker.kill()
    worker.communicate()
    assert eventually(lambda: not psutil.pid_exists(pid), 10)

    own = tools_of({"command": COMMAND, "include": ["process"]})
    pid = int(call(own, "process").text)
    close_tools(own.values())
    close_tools(own.values())
    assert eventually(lambda: not psutil.pid_exists(pid), 10)


@pytest.mark.parametrize(
    ("mcp", "message"),
    [
        ({"command": ["no-such-server"]}, "no-such-server: its tools cannot be listed: "),
        ({"command": ["sleep", "60"]}, "sleep 60: its tools cannot be listed: no answer within timeout=1.5 seconds"),
        ({"url": "http://127.0.0.1:9/mcp"}, "http://127.0.0.1:9/mcp: its tools cannot be listed: "),
    ],
)
def test_a_server_that_cannot_be_asked_is_one_line_before_anything_starts(mcp, message):
    pytest.importorskip("mcp", reason="needs the extra mcp")
    with pytest.raises(ConfigError, match=f"rollout.agent.tools: {message}") as error:
        tools_of(mcp, timeout=1.5)
    assert "\n" not in str(error.value)


def test_unknown_tools_and_equal_names_are_refused(tools):
    before = set(psutil.Process().children())
    with pytest.raises(ConfigError, match="stdio: has no tool subtract; it has add, process, fail, draw"):
        tools_of({"command": COMMAND, "include": ["add", "subtract"]})
    agent = AgentConfig.model_validate({"max_turns": 1, "tools": [{"mcp": {"command": COMMAND}}] * 2})
    with pytest.raises(ConfigError, match="two tools have the name add; names must differ"):
        build_tools(agent.tools)
    assert eventually(lambda: set(psutil.Process().children()) <= before, 10)


def test_a_server_over_http_is_connected_to_again():
    pytest.importorskip("mcp", reason="needs the extra mcp")
    port = server_port()
    start = [sys.executable, str(SERVER), str(port)]
    server = subprocess.Popen(start, stderr=subprocess.DEVNULL)
    try:
        tools, deadline = None, time.monotonic() + 30
        while tools is None:
            try:
                tools = tools_of({"url": f"http://127.0.0.1:{port}/mcp"}, timeout=10, retries=3, backoff=0.1)
            except ConfigError:
                assert time.monotonic() < deadline
                time.sleep(0.2)
        assert call(tools, "add", left=2).text == "3"
        server.kill()
        server.wait()
        assert call(tools, "add", left=2).outcome == "failure"
        server = subprocess.Popen(start, stderr=subprocess.DEVNULL)
        assert eventually(lambda: call(tools, "add", left=3).text == "4", 30)
        close_tools(tools.values())
    finally:
        server.kill()
        server.wait()
