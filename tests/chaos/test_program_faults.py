"""A job whose episodes are programs: a part dies in the middle of one, and the outcome stays bit-identical.

The server that a program asks is in its rollout worker, so it dies with it.
"""

import pytest
from faulty_runs import FaultyRuns, Outcome, fault

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

JOB = "program"
WORDS = ("iterations=2", "cluster.node_timeout=200")
EPISODES, EVALUATED = 8, 10
IN_SECOND_ITERATION = EVALUATED + EPISODES + EPISODES // 2
"""Number of a turn in the second iteration: each episode counts once."""


@pytest.fixture(scope="module")
def undisturbed(faulty_runs: FaultyRuns) -> Outcome:
    faulty_runs.run("undisturbed", words=WORDS)
    turns = list(faulty_runs.beside_plan("undisturbed", "").parent.glob("undisturbed-turn-*"))
    assert len(turns) == 2 * (EVALUATED + EPISODES)
    return faulty_runs.outcome("undisturbed")


@pytest.mark.parametrize("part", ["rollout/0", "program", "driver"])
def test_a_part_dies_while_programs_play(faulty_runs: FaultyRuns, undisturbed: Outcome, part: str) -> None:
    death, run_id = fault("turn", part, iteration=IN_SECOND_ITERATION), part.replace("/", "-")

    output = faulty_runs.assert_recovers(undisturbed, run_id, death, words=WORDS)

    assert ("rollout worker 0 died in node rollout and is replaced" in output) == (part == "rollout/0")
    retries = [record["perf/tool_retries"] for record in faulty_runs.runs.records(run_id) if "digests" in record]
    assert retries == [0, part == "program"]
