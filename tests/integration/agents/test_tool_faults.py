"""Faults of real tools while a run trains: the weights are those without faults, and each fault is counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import agent_jobs
import pytest
from agent_jobs import WORDS, agent_words, tools_word
from faulty_mcp_tools import http_server, http_tools, plan, stdio_tools
from server_ports import server_port

from benchmarks.control.in_process import InProcessRun
from embodyflow.data.tables import digest_of

pytestmark = pytest.mark.integration

KINDS = ("time-out", "broken answer", "crash", "server_error", "disconnect")
"""The tools answer the turns of an episode in this order: two functions, a process, and two over HTTP."""
FAULTS_OF_A_KIND = 10
"""Faults of each kind in an iteration."""


@pytest.fixture
def faults(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "faults"
    folder.mkdir()
    yield folder
    agent_jobs.FAULTS.clear()


def train(faults: Path, port: int, *, faulty: bool) -> tuple[list[str], list[dict[str, float]]]:
    """Train for two iterations; return the digests of the weights after each, and the metrics."""
    limits = {"retries": 3, "backoff": 0.05}
    tools = [
        {"function": "agent_jobs:look_up", "timeout": 2.5, **limits},
        {"function": "agent_jobs:recall", "timeout": 30, **limits},
        # A process that dies fails all calls that it has, so it has one.
        stdio_tools(faults, "crash", timeout=60, concurrency=1, **limits),
        http_tools(port, timeout=60, **limits),
    ]
    words = (tools_word(*tools), "rollout.group_size=7", "filter.drop_uniform=false")
    run = InProcessRun(agent_words(*WORDS, *words))
    run.warm_start()
    digests, metrics = [], []
    for iteration in (1, 2):
        if faulty:
            plan_faults(run, iteration, faults)
        metrics.append(run.iterate(iteration))
        digests.append(digest_of(run.trainer.weights()))
    run.rollout.close()
    run.trainer.close()
    return digests, metrics


def plan_faults(run: InProcessRun, iteration: int, faults: Path) -> None:
    """Give the first episodes of an iteration one fault of each kind."""
    episodes = run.rollout.training_episodes(run.config.seed, iteration)[:FAULTS_OF_A_KIND]
    for place, kind in [(f"{each.uid}/{turn}", kind) for each in episodes for turn, kind in enumerate(KINDS)]:
        if kind in ("time-out", "broken answer"):
            agent_jobs.FAULTS[place] = [kind]
        else:
            plan(faults, place)


@pytest.mark.timeout(400)
def test_a_hundred_faults_of_five_kinds_leave_the_weights_as_they_are(faults: Path) -> None:
    """A call takes too long, raises, kills its process, gets a 503, and loses its connection."""
    pytest.importorskip("mcp", reason="needs the extra mcp")
    port = server_port()
    with http_server(faults, port, "server_error", "disconnect"):
        undisturbed, quiet = train(faults, port, faulty=False)
        disturbed, noisy = train(faults, port, faulty=True)

    assert not any(agent_jobs.FAULTS.values()) and not list(faults.iterdir()), "a planned fault did not happen"
    assert disturbed == undisturbed and undisturbed[0] != undisturbed[1]
    num_faults = FAULTS_OF_A_KIND * len(KINDS)
    assert [each["perf/tool_retries"] for each in quiet] == [0, 0]
    assert [each["perf/tool_retries"] for each in noisy] == [num_faults, num_faults] == [50, 50]
    assert [each["perf/redrawn_episodes"] for each in noisy] == [0, 0]
