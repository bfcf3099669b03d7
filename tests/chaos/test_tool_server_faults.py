"""A job with tools: a part dies in the middle of an episode, and the outcome stays bit-identical.

The tools answer the turns of an episode in order: a function, which answers differently each time that it is called, a
server that is a process of the rollout worker, and a server over HTTP.
"""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen

import pytest
from agent_jobs import tools_word
from faulty_mcp_tools import http_tools, plan, start_server, stdio_tools
from faulty_runs import FaultyRuns, Outcome, fault
from server_ports import server_port

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

JOB = "agent"
CALLS, EVALUATED = 8 * 3, 10 * 3
"""Calls of the function in an iteration, and in each evaluation: three of the eight turns of an episode."""
IN_SECOND_ITERATION = EVALUATED + CALLS + CALLS // 2
TURNS = {"crash": 4, "die": 5}
"""A turn that each of the servers answers."""
DOWN_SECONDS = 3.0


@dataclass
class RevivedServer:
    """A server over HTTP that somebody starts again some seconds after its death."""

    folder: Path
    port: int = field(default_factory=server_port)
    num_deaths: int = 0
    _process: Popen[bytes] | None = None
    _closing: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        self._process = start_server(self.folder, self.port, "die")
        threading.Thread(target=self._revive, daemon=True).start()

    def stop(self) -> None:
        self._closing.set()
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def _revive(self) -> None:
        while not self._closing.wait(0.05):
            assert self._process is not None
            if self._process.poll() is not None:
                self.num_deaths += 1
                time.sleep(DOWN_SECONDS)
                self._process = start_server(self.folder, self.port, "die")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RevivedServer]:
    pytest.importorskip("mcp", reason="needs the extra mcp")
    server = RevivedServer(tmp_path_factory.mktemp("faults"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def words(server: RevivedServer) -> tuple[str, ...]:
    tools = tools_word(
        {"function": "faulty_agents:ask", "timeout": 90},
        stdio_tools(server.folder, "crash", timeout=60),
        http_tools(server.port, timeout=60, retries=8),
    )
    return "iterations=2", "rollout.num_workers=1", "cluster.node_timeout=200", tools


@pytest.fixture(scope="module")
def undisturbed(faulty_runs: FaultyRuns, words: tuple[str, ...]) -> Outcome:
    faulty_runs.run("undisturbed", words=words)
    assert len(asked(faulty_runs, "undisturbed")) == 2 * (EVALUATED + CALLS)
    return faulty_runs.outcome("undisturbed")


def asked(faulty_runs: FaultyRuns, run_id: str) -> list[str]:
    """Return the places that the function was asked for."""
    return faulty_runs.beside_plan(run_id, ".asked").read_text().splitlines()


@pytest.mark.parametrize("part", ["rollout/0", "driver"])
def test_a_part_dies_while_episodes_are_played(
    faulty_runs: FaultyRuns, undisturbed: Outcome, words: tuple[str, ...], part: str
) -> None:
    death, run_id = fault("call", part, iteration=IN_SECOND_ITERATION), part.replace("/", "-")

    output = faulty_runs.assert_recovers(undisturbed, run_id, death, words=words)

    assert ("rollout worker 0 died in node rollout and is replaced" in output) == (part == "rollout/0")
    assert sorted(asked(faulty_runs, run_id)) == sorted(asked(faulty_runs, "undisturbed"))


@pytest.mark.parametrize("tool", TURNS)
def test_the_server_of_a_tool_dies_while_it_is_asked(
    faulty_runs: FaultyRuns, undisturbed: Outcome, words: tuple[str, ...], server: RevivedServer, tool: str
) -> None:
    uid, deaths = asked(faulty_runs, "undisturbed")[IN_SECOND_ITERATION].split("/")[0], server.num_deaths
    plan(server.folder, f"{uid}/{TURNS[tool]}")

    faulty_runs.assert_recovers(undisturbed, tool, words=words)

    assert not list(server.folder.iterdir()) and server.num_deaths == deaths + (tool == "die")
    retries = [record["perf/tool_retries"] for record in faulty_runs.runs.records(tool) if "digests" in record]
    assert retries[0] == 0 and retries[1] >= 1
