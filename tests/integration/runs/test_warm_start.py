"""Warm starts that end at a measured quality, in complete runs."""

import json
import os
import signal
from pathlib import Path

import pytest
from small_runs import SMALL, Runs
from waiting import finish

pytestmark = pytest.mark.integration

UNTIL = ("warm_start.steps=20", "warm_start.until={success:1.0,max_steps:60,every:20,num_held_out:4}", "iterations=1")


@pytest.mark.slow
def test_a_trainer_that_dies_between_two_measurements_changes_nothing(tmp_path: Path, prefect_api: str) -> None:
    disturbed, undisturbed = (Runs(tmp_path / name, prefect_api) for name in ("disturbed", "undisturbed"))
    process = disturbed.start(*SMALL, f"run_root={disturbed.root}", "run_id=one", *UNTIL)
    assert process.stdout is not None
    for line in process.stdout:
        if "after 20 steps of the warm start" in line:
            break
    pids = json.loads((disturbed.root / "one" / "processes.json").read_text())
    os.kill(pids["trainer/0"], signal.SIGKILL)
    output = finish(process)
    assert process.returncode == 0, output[-4000:]
    assert output.count("after 40 steps of the warm start") >= 1 and "the start failed and is retried" in output
    undisturbed.run("one", *UNTIL)
    [begun] = [record for record in disturbed.metrics("one") if "sft/reached" in record]
    assert begun["sft/steps"] == 60
    assert begun in undisturbed.metrics("one")
    digests = {runs.summary("one")["weights_digest"] for runs in (disturbed, undisturbed)}
    assert len(digests) == 1
