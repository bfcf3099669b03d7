"""A process that plays agents' episodes is killed in the middle of one; its successor trains the same weights.

The process is a run without Ray and Prefect, which starts in seconds; ``test_tool_server_faults.py`` and
``test_program_faults.py`` do the same with complete runs.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agent_jobs import run_words, tools_word
from faulty_mcp_tools import stdio_tools
from faulty_runs import INTERVIEW_WORDS, JOBS, MODULES, fault

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

SCRIPT = str(Path(__file__).with_name("journaled_run.py"))
EPISODES, CALLS = 8, 32
"""Episodes of an iteration, and calls of the tool ``ask`` in it: four of the eight turns of an episode."""


def train(folder: Path, run_id: str, words: list[str], *faults: dict[str, Any]) -> tuple[list[str], int]:
    """Train, and start again after each kill; return the digests of the weights, and the number of kills."""
    plan = folder / f"{run_id}.json"
    plan.write_text(json.dumps(faults))
    env = os.environ | {"PYTHONPATH": MODULES, "EMBODYFLOW_FAULTS": str(plan)}
    command, num_kills = [sys.executable, SCRIPT, *words], 0
    while True:
        ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=400)
        if ended.returncode != -signal.SIGKILL:
            break
        num_kills += 1
    assert ended.returncode == 0, ended.stderr[-4000:]
    digests: list[str] = json.loads(ended.stdout.splitlines()[-1])
    assert digests[0] != digests[1]
    return digests, num_kills


@pytest.mark.slow
def test_a_worker_dies_with_the_server_that_its_programs_ask(tmp_path: Path) -> None:
    words = list(JOBS["program"][1])
    undisturbed, _ = train(tmp_path, "undisturbed", words)

    in_second_iteration = EPISODES + EPISODES // 2
    disturbed, num_kills = train(tmp_path, "killed", words, fault("turn", "rollout/0", in_second_iteration))

    assert disturbed == undisturbed and num_kills == 1


@pytest.mark.slow
def test_a_worker_dies_with_the_server_of_its_tools_in_mid_episode(tmp_path: Path) -> None:
    """The tool of the worker answers differently when it is called again, so no call is made twice."""
    pytest.importorskip("mcp", reason="needs the extra mcp")
    faults = tmp_path / "faults"
    faults.mkdir()
    tools = tools_word({"function": "faulty_agents:ask", "timeout": 90}, stdio_tools(faults, "look_up", timeout=60))
    words = run_words(*INTERVIEW_WORDS, tools)
    undisturbed, _ = train(tmp_path, "undisturbed", words)

    in_second_iteration = CALLS + CALLS // 2
    disturbed, num_kills = train(tmp_path, "killed", words, fault("call", "rollout/0", in_second_iteration))

    assert disturbed == undisturbed and num_kills == 1
    asked = [sorted((tmp_path / f"{run_id}.asked").read_text().splitlines()) for run_id in ("undisturbed", "killed")]
    assert asked[0] == asked[1] and len(asked[0]) == 2 * CALLS
