"""A sweep's bookkeeping: what is run, recorded, continued and ranked, with runs that only write their folders."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import psutil
import pytest

from embodyflow.cli.main import main
from embodyflow.errors import ConfigError, StorageError, SweepError
from embodyflow.orchestration.display.artifacts import Artifacts
from embodyflow.orchestration.sweep import sweep_run
from embodyflow.orchestration.sweep.leaderboard import Leaderboard, leaderboard
from embodyflow.orchestration.sweep.run_process import Outcome, run_process
from embodyflow.orchestration.sweep.subflow_runs import SubflowRuns
from embodyflow.orchestration.sweep.sweep_folder import RunState, SweepFolder
from embodyflow.orchestration.sweep.sweep_request import Plan, SweepRequest, planned
from embodyflow.orchestration.sweep.sweep_run import Sweep, check_concurrency
from embodyflow.record.run_folder import RunFolder

REWARD = "rollout/reward"


class Shown:
    """Artifacts as the sweep puts them."""

    def __init__(self) -> None:
        self.tables: list[list[dict[str, Any]]] = []
        self.percents: list[float] = []

    def put_table(self, name: str, rows: list[dict[str, Any]], description: str) -> None:
        assert name == "leaderboard"
        self.tables.append(rows)

    def put_progress(self, percent: float, description: str) -> None:
        self.percents.append(percent)


class NoServer:
    """Subflow runs without a server."""

    def __init__(self) -> None:
        self.names: list[str] = []

    @asynccontextmanager
    async def opened(self, flow: str, name: str, parameters: dict[str, Any]) -> AsyncIterator[UUID]:
        self.names.append(name)
        yield uuid4()


class Bench:
    """A sweep whose processes write a run's folder at once.

    Args:
        root: Folder of the runs.
        patch: Replaces what starts a process.
    """

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self.started, self.at_once, self.most = root, [], 0, 0
        self.rewards: dict[str, Sequence[float]] = {}
        self.failing: set[str] = set()
        self.full: set[str] = set()
        self.shown = Shown()
        patch.setattr(sweep_run, "run_process", self.process)
        patch.setattr(sweep_run, "environment", lambda flow_run_id, address: {})
        patch.setattr(sweep_run, "_log", lambda line: None)

    def request(self, *overrides: str, **values: Any) -> SweepRequest:
        return SweepRequest("s", "pendulum", (f"run_root={self.root}", *overrides), **values)

    def opened(self, request: SweepRequest) -> tuple[Plan, SweepFolder]:
        plan = planned(request)
        folder = SweepFolder(plan.run_root, "s")
        plan = folder.check(plan, request.if_exists)
        with folder.locked():
            folder.open(plan)
        return plan, folder

    def run(self, request: SweepRequest) -> Sweep:
        plan, folder = self.opened(request)
        self.plan = plan
        subflows = NoServer()
        sweep = Sweep(request, plan, folder, cast(Artifacts, self.shown), cast(SubflowRuns, subflows))
        self.started = subflows.names
        asyncio.run(sweep.run_left("127.0.0.1:1"))
        return sweep

    async def process(self, words: list[str], env: dict[str, str], log: Path) -> Outcome:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0.01)
        self.at_once -= 1
        run_id = next(word for word in words if word.startswith("run_id=")).partition("=")[2]
        if run_id in self.full:
            raise StorageError("the disk is full")
        if run_id in self.failing:
            return Outcome(1, 2.0, "HealthError: NaN")
        [config] = [each.config for each in self.plan.combinations if each.run_id == run_id]
        folder = RunFolder.create(config)
        for iteration, reward in enumerate(self.rewards.get(run_id, (1.0, 2.0)), 1):
            folder.metrics.append({"iteration": iteration, REWARD: reward})
        folder.write_summary({})
        return Outcome(0, 3.0, "")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path / "runs", monkeypatch)


def states(sweep_folder: Path) -> dict[str, str]:
    return {
        run_id: each["state"] for run_id, each in json.loads((sweep_folder / "sweep.json").read_text())["runs"].items()
    }


@pytest.mark.parametrize("concurrency", [1, 2])
def test_at_most_so_many_runs_are_at_work(bench: Bench, concurrency: int) -> None:
    bench.run(bench.request("seed=range(0,4)", concurrency=concurrency))
    assert bench.started == ["s-1", "s-2", "s-3", "s-4"] and bench.most == concurrency
    assert set(states(bench.root / "s").values()) == {"finished"} and bench.shown.percents[-1] == 100.0


def test_a_failed_run_stops_no_other_and_is_named_at_the_end(bench: Bench) -> None:
    bench.failing = {"s-1"}
    sweep = bench.run(bench.request("seed=range(0,3)"))
    assert bench.started == ["s-1", "s-2", "s-3"]
    with pytest.raises(SweepError, match=r"^1 of 3 runs failed: s-1; the same command with if_exists=resume tries"):
        sweep.result()


def test_a_full_disk_ends_a_sweep_by_its_own_error(bench: Bench) -> None:
    bench.full = {"s-1"}
    with pytest.raises(StorageError, match="the disk is full"):
        bench.run(bench.request("seed=range(0,4)", concurrency=2))
    assert states(bench.root / "s")["s-1"] == "stopped"


def test_no_run_starts_after_a_failure_if_so_asked(bench: Bench) -> None:
    bench.failing = {"s-1"}
    sweep = bench.run(bench.request("seed=range(0,3)", stop_at_failure=True))
    assert bench.started == ["s-1"]
    with pytest.raises(SweepError, match=r"^1 of 3 runs failed: s-1; 2 of 3 runs waiting: s-2, s-3; the same command"):
        sweep.result()
    assert states(bench.root / "s") == {"s-1": "failed", "s-2": "waiting", "s-3": "waiting"}


def test_a_sweep_that_is_continued_runs_what_has_not_finished(bench: Bench) -> None:
    bench.failing = {"s-2"}
    request = bench.request("seed=range(0,3)")
    bench.run(request)
    bench.failing = set()
    again = replace(bench.request("seed=2,1,0"), if_exists="resume")  # another order is the same grid
    assert bench.run(again).result()["runs"] == 3 and bench.started == ["s-2"]
    run = json.loads((bench.root / "s" / "sweep.json").read_text())["runs"]["s-2"]
    assert (run["seconds"], run["reason"], run["words"][-1]) == (5.0, "", "seed=1")


def test_a_run_that_was_at_work_when_the_sweep_was_killed_is_started_again(bench: Bench) -> None:
    request = bench.request("seed=range(0,2)")
    plan, folder = bench.opened(request)
    folder.update(plan, "s-1", RunState.RUNNING)
    _, found = bench.opened(replace(request, if_exists="resume"))
    assert found.records["s-1"].state is RunState.STOPPED
    bench.run(replace(request, if_exists="resume"))
    assert bench.started == ["s-1", "s-2"]


@pytest.mark.parametrize(
    ("overrides", "if_exists", "message"),
    [
        (
            ("seed=range(0,2)",),
            "refuse",
            "sweep_id=s: {root}/s exists; if_exists=resume continues it, or choose another",
        ),
        (
            ("seed=range(0,3)", "iterations=7"),
            "resume",
            "sweep_id=s: a sweep keeps its grid; seed=0,1,2: it has seed=0,1; iterations=7: it does not set it",
        ),
    ],
)
def test_another_sweep_of_the_same_name_is_refused(
    bench: Bench, overrides: Sequence[str], if_exists: str, message: str
) -> None:
    bench.opened(bench.request("seed=range(0,2)"))
    with pytest.raises(ConfigError) as caught:
        bench.opened(bench.request(*overrides, if_exists=if_exists))
    assert str(caught.value).startswith(message.format(root=bench.root))


def test_runs_of_somebody_else_are_left_alone(bench: Bench) -> None:
    request = bench.request("seed=range(0,2)")
    RunFolder.create(planned(request).combinations[1].config)
    with pytest.raises(ConfigError, match=r"s-2 is a run of its own; choose another sweep_id$"):
        bench.opened(request)


def test_a_sweep_at_work_is_refused(bench: Bench) -> None:
    request = bench.request("seed=range(0,2)")
    _, folder = bench.opened(request)
    with (
        folder.locked(),
        pytest.raises(ConfigError, match=rf"^sweep_id=s: process {os.getpid()} is at work on this sweep"),
    ):
        bench.opened(replace(request, if_exists="resume"))


RATES = "trainer.learning_rate=1e-3,3e-4,1e-4"


def ranked_board(bench: Bench, **values: Any) -> Leaderboard:
    """Three rates with two seeds each: one better, one worse, one that fails with a seed and has NaN with the other."""
    bench.rewards = {
        "s-1": (0.5, 1.0),
        "s-2": (1.5, 2.0),
        "s-3": (1.0, 4.0),
        "s-4": (1.0, 3.0),
        "s-5": (1.0, float("nan")),
    }
    bench.failing = {"s-6"}
    request = bench.request(RATES, "seed=0,1", **values)
    bench.run(request)
    plan, folder = bench.opened(replace(request, if_exists="resume"))
    return leaderboard(plan, folder, "s", request.metric, request.direction)


def test_rows_are_ranked_by_the_mean_over_seeds(bench: Bench) -> None:
    best, second, last = ranked_board(bench).rows
    assert (best.rank, best.settings, best.before, best.after) == (1, {"trainer.learning_rate": "0.0003"}, 1.0, 3.5)
    assert best.interval is not None and (best.interval.low, best.interval.high) == (3.0, 4.0)
    assert (best.interval.kind, best.seeds, best.state, best.seconds) == ("range", 2, "2 finished", 6.0)
    assert (second.rank, second.before, second.after) == (2, 1.0, 1.5)
    assert last.rank is None and last.state == "1 finished, 1 failed" and last.seconds == 5.0


def test_a_small_value_is_best_if_so_asked(bench: Bench) -> None:
    board = ranked_board(bench, direction="minimize", metric=REWARD)
    assert [row.after for row in board.rows[:2]] == [1.5, 3.5] and board.rows[2].rank is None


def test_a_metric_that_no_run_has_ranks_nothing(bench: Bench) -> None:
    board = ranked_board(bench, metric="my/own")
    assert [(row.rank, row.before, row.after) for row in board.rows] == [(None, None, None)] * 3


def test_the_leaderboard_fits_80_columns_and_names_failures(bench: Bench) -> None:
    text = ranked_board(bench).text()
    print(text)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80 and lines[0] == "rollout/reward, maximize"
    assert " ".join(lines[2].split()) == "1 0.0003 1 3.5 3 to 4 2 finished 6 3 4"
    assert "interval: smallest and largest value of the seeds" in lines
    assert lines[-1] == "s-6 failed: HealthError: NaN; see logs/s-6.log"


def test_a_wide_grid_still_fits_80_columns(bench: Bench) -> None:
    request = bench.request(
        "trainer.learning_rate=1e-3,3e-4", "policy.hidden_size=16,32", "off_policy.batch_size=32,64", "seed=range(0,2)"
    )
    plan, folder = bench.opened(request)
    lines = leaderboard(plan, folder, "s", None, "maximize").text().splitlines()
    assert max(map(len, lines)) <= 80 and lines[0] == "no metric yet, maximize"


def test_a_list_in_brackets_is_printed_as_it_is(bench: Bench) -> None:
    plan, folder = bench.opened(bench.request("seed=0,1"))
    board = leaderboard(plan, folder, "s", None, "maximize")
    rows = [replace(row, settings={"env.tasks": "[reach-v3,push-v3]"}) for row in board.rows]
    assert "[reach-v3,push-v3]" in replace(board, rows=rows).text(200)


def test_the_files_have_what_is_printed(bench: Bench) -> None:
    ranked_board(bench)
    written = json.loads((bench.root / "s" / "leaderboard.json").read_text())
    assert [row["rank"] for row in written["rows"]] == [1, 2, None] and written["failures"].keys() == {"s-6"}
    markdown = (bench.root / "s" / "leaderboard.md").read_text()
    assert "| 1 | 0.0003 | 1 | 3.5 | 3 to 4 | 2 finished | 6 | 3 4 |" in markdown
    assert bench.shown.tables[-1][0]["learning_rate"] == "0.0003" and bench.shown.tables[-1][0]["after"] == 3.5


def test_many_seeds_have_students_interval(bench: Bench) -> None:
    bench.rewards = {f"s-{number}": (0.0, float(number)) for number in range(1, 6)}
    request = bench.request("seed=range(0,5)")
    bench.run(request)
    plan, folder = bench.opened(replace(request, if_exists="resume"))
    [row] = leaderboard(plan, folder, "s", REWARD, "maximize").rows
    assert row.settings == {} and row.after == 3.0 and row.interval is not None and row.interval.kind == "mean"
    # 3 -+ t(0.975, 4) * sqrt(2.5) / sqrt(5) = 3 -+ 2.776 * 0.7071
    assert (row.interval.low, row.interval.high) == pytest.approx((1.037, 4.963), abs=0.01)


def test_compare_reads_the_runs(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embodyflow.stack.signals.exit_on_signals", lambda: None)
    bench.run(bench.request("trainer.learning_rate=1e-3,3e-4"))
    assert main(["compare", "s-1", "s-2", "--run-root", str(bench.root)]) == 0
    assert "trainer.learning_rate" in capsys.readouterr().out


def test_a_process_that_ends_has_its_last_line_as_the_reason(tmp_path: Path) -> None:
    outcome = asyncio.run(run_process(["sh", "-c", "echo one; echo two >&2; exit 3"], {}, tmp_path / "log"))
    assert (outcome.code, outcome.reason) == (3, "two")
    assert (tmp_path / "log").read_text().splitlines() == ["$ sh -c 'echo one; echo two >&2; exit 3'", "one", "two"]
    killed = asyncio.run(run_process(["sh", "-c", "kill -9 $$"], {}, tmp_path / "log"))
    assert (killed.code, killed.reason) == (-signal.SIGKILL, "its process was ended by SIGKILL")


def test_a_cancelled_process_is_asked_to_stop_and_waited_for(tmp_path: Path) -> None:
    script = "trap 'echo stopping; exit 130' TERM; echo $$; while :; do sleep 0.05; done"

    async def cancel() -> int:
        running = asyncio.create_task(run_process(["sh", "-c", script], dict(os.environ), tmp_path / "log"))
        while len(lines := (tmp_path / "log").read_text().splitlines() if (tmp_path / "log").exists() else []) < 2:
            await asyncio.sleep(0.02)
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()
        return int(lines[1])

    assert not psutil.pid_exists(asyncio.run(cancel()))
    assert (tmp_path / "log").read_text().endswith("stopping\n")


def test_more_runs_at_a_time_than_the_cluster_has_room_for_are_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = planned(bench.request("cluster.cpus_per_worker=1", "rollout.num_workers=1")).combinations[0].config
    assert {role: shape.num_ranks for role, shape in config.groups.items()} == {"trainer": 1, "rollout": 1}
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 5.0})
    check_concurrency(2, config)
    message = "^concurrency=3: so many runs need 6 CPUs, the Ray cluster has 5; allowed are up to 2$"
    with pytest.raises(ConfigError, match=message):
        check_concurrency(3, config)
