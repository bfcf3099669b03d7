"""A due evaluation runs once and is filmed once, even if a failure interrupts it."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from counting_run import run_in

from embodyflow.config import RunConfig
from embodyflow.errors import WorkerLostError
from embodyflow.orchestration.display import progress_log
from embodyflow.orchestration.display.report import Section
from embodyflow.orchestration.evaluation import evaluation, lanes
from embodyflow.record.run_folder import RunFolder
from embodyflow.workers.calls import NodeWork

LOST = WorkerLostError("a worker of the rollout group is gone")


class Studio:
    """Stands in for evaluation and film, logs their steps, and fails once at a given step."""

    def __init__(self, failing: str, problem: str | None) -> None:
        self._failing, self._problem = failing, problem
        self.done: list[str] = []

    async def evaluate(self, run: Any, index: int, lane: object) -> dict[str, float]:
        self.done.append("evaluated")
        return {"eval/greedy_success_rate": 0.5}

    async def submit(self, work: NodeWork, parents: object = ()) -> SimpleNamespace:
        self.done.append("filmed")
        path = Path(work.config["path"])
        if self._problem is None:
            path.write_text("half a film")
        self._fail_at("film")
        if self._problem is None:
            path.write_text("a film")
        return SimpleNamespace(info={"problem": self._problem})

    async def draw(self, run: Any, index: int, lane: object) -> None:
        self.done.append("drawn")
        self._fail_at("drawing")

    def _fail_at(self, what: str) -> None:
        if self._failing == what:
            self._failing = ""
            raise LOST


@pytest.mark.parametrize("problem", [None, "no EGL here"])
@pytest.mark.parametrize(
    ("failing", "done"),
    [("film", ["evaluated", "filmed", "filmed", "drawn"]), ("drawing", ["evaluated", *["filmed", "drawn"] * 2])],
)
def test_a_film_that_failed_is_retried_and_made_once(
    tiny_config: Callable[..., RunConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    problem: str | None,
    failing: str,
    done: list[str],
) -> None:
    config = tiny_config(f"run_root={tmp_path}", "run_id=mine", "evaluation.video=true")
    run, studio = run_in(RunFolder.create(config), config), Studio(failing, problem)
    shown: list[Section] = []
    logged: list[tuple[object, ...]] = []
    run.artifacts = SimpleNamespace(put_section=lambda section, content, part="": shown.append(section))
    run.trackers = [SimpleNamespace(log=lambda *words: None, log_video=lambda *words: logged.append(words))]
    monkeypatch.setattr(evaluation, "evaluate", studio.evaluate)
    monkeypatch.setattr(lanes, "submit_node", studio.submit)
    monkeypatch.setattr(evaluation, "draw_training", studio.draw)
    for module in (evaluation, progress_log):
        monkeypatch.setattr(module, "get_run_logger", lambda: logging.getLogger("film"))
    with pytest.raises(WorkerLostError):
        asyncio.run(run.evaluations.after(run, 0))
    for _ in range(2):
        asyncio.run(run.evaluations.after(run, 0))
    assert studio.done == done
    held = {"iteration-000000.gif": "a film"} if problem is None else {"iteration-000000.txt": f"{problem}\n"}
    film = run.folder.subfolder("videos") / "iteration-000000.gif"
    assert shown == ([Section.BEFORE] if problem is None else [])
    assert logged == ([(0, "eval/episodes", film)] if problem is None else [])
    assert {path.name: path.read_text() for path in run.folder.subfolder("videos").iterdir()} == held
