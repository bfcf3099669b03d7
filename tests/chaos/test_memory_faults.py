"""Ray kills workers because the machine's memory runs short: they are replaced, and the log says what to lower."""

import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from machine_memory import MachineMemory
from ray_head import ray_head
from small_runs import SMALL, TWO_WORKERS, Runs, assert_trained, training_records
from waiting import eventually, finish

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

WORDS = (TWO_WORKERS, "iterations=6")
ADVICE = "lower rollout.num_workers or rollout.envs_per_worker, or give the machine more memory"


@pytest.fixture
def memory(tmp_path: Path) -> MachineMemory:
    memory = MachineMemory(tmp_path)
    if reason := memory.why_not():
        pytest.skip(reason)
    return memory


@pytest.fixture
def runs(tmp_path: Path, prefect_api: str, memory: MachineMemory) -> Iterator[Runs]:
    with ray_head(tmp_path, prefix=memory.prefix, RAY_memory_monitor_refresh_ms="100") as env:
        yield Runs(tmp_path).served_by(prefect_api, **env)


def test_workers_that_ray_kills_for_memory_are_replaced_with_advice(runs: Runs, memory: MachineMemory) -> None:
    process = runs.start(*SMALL, *WORDS, f"run_root={runs.root}", "run_id=short")
    try:
        folder = runs.root / "short"
        committed = folder / "checkpoints" / "iteration-000001"
        assert eventually(lambda: committed.exists() or process.poll() is not None, 500.0)
        pids = json.loads((folder / "processes.json").read_text())
        workers = [psutil.Process(pid) for name, pid in pids.items() if name.startswith(("rollout/", "trainer/"))]
        assert len(workers) == 3

        memory.set_available(0.04)  # Ray acts below 0.05
        killed = eventually(lambda: not all(each.is_running() for each in workers), 100.0)
        memory.set_available(0.9)

        output = finish(process, 500)
    finally:
        process.kill()
    assert killed and process.returncode == 0, output[-4000:]
    assert ADVICE in output and "low on memory" in output
    records = runs.records("short")
    assert_trained(records)
    assert [each["iteration"] for each in training_records(records)] == [1, 2, 3, 4, 5, 6]
