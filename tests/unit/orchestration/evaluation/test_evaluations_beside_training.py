"""Evaluations beside training have the numbers, the ledger and the weights of evaluations between iterations."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from counting_run import begin, iterate, leave_flows, run_after, run_in

from embodyflow.config import RunConfig
from embodyflow.errors import WorkerLostError
from embodyflow.orchestration.evaluation import evaluation
from embodyflow.orchestration.run import recovery, training
from embodyflow.record.metrics_log import lasting_metrics
from embodyflow.record.run_folder import RunFolder

ITERATIONS, EVERY = 7, 3


class Killed(Exception):
    """Stands for the death of the process."""


LOST = WorkerLostError("a worker of the rollout group is gone")


class Evaluator:
    """Measures a number that depends on the weights, once training is ``lag`` iterations ahead or has ended.

    Args:
        lag: Number of iterations.
        fails: Error at the first evaluation of a version, by version.
    """

    def __init__(self, lag: int = 0, fails: dict[int, Exception] | None = None) -> None:
        self._lag, self._fails = lag, fails or {}
        self.evaluated: list[tuple[int, int]] = []  # version, and the newest version meanwhile
        self.most_held = 0

    async def evaluate(self, run: Any, index: int, lane: object) -> dict[str, float]:
        # A due iteration ends when the evaluation before is recorded, so training cannot come further.
        following = min(index + self._lag, ITERATIONS, (index // EVERY + 1) * EVERY)
        while run.session.policy_version < following:
            await asyncio.sleep(0)
        self.most_held = max(self.most_held, len(run.session.held))
        self.evaluated.append((index, run.session.policy_version))
        if index in self._fails:
            raise self._fails.pop(index)
        digest = run.session.held_digest(index) or run.session.weights_digest
        return {"eval/greedy_success_rate": int(digest[:8], 16) / 2**32}


@pytest.fixture(autouse=True)
def outside_of_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_flows(monkeypatch)


@pytest.fixture
def config_of(tiny_config: Callable[..., RunConfig], tmp_path: Path) -> Callable[..., RunConfig]:
    """A function that returns the configuration of a run, given its name and further words."""

    def config(run_id: str, *words: str) -> RunConfig:
        own = (f"run_root={tmp_path}", f"run_id={run_id}", f"iterations={ITERATIONS}", "trainer.keep_checkpoints=1")
        return tiny_config(*own, f"evaluation.every={EVERY}", "evaluation.video=false", *words)

    return config


def outcome_of(run: Any) -> tuple[Any, ...]:
    lines = [lasting_metrics(line) for line in run.folder.metrics.read()]
    in_order = sorted(lines, key=lambda line: (line["iteration"], "loss" not in line))
    return run.session.state, run.session.weights_digest, run.stages.ledger.digest(), in_order


class Life:
    """A process that trains.

    Args:
        run: Its run.
        evaluator: Evaluates in it.
        ends_at: Iteration whose beginning ends the process.
        fails_at: Iteration that fails once.
    """

    def __init__(self, run: Any, evaluator: Evaluator, ends_at: int = 0, fails_at: int = 0) -> None:
        self.run, self.evaluator = run, evaluator
        self._ends_at, self._fails_at = ends_at, fails_at

    async def _iterate(self, run: Any, index: int) -> None:
        if index == self._ends_at:
            await run.stages.drain()
            raise Killed
        if index == self._fails_at:
            self._fails_at = 0
            raise LOST
        await iterate(run, index)

    def live(self, monkeypatch: pytest.MonkeyPatch, *, resumes: bool = False) -> tuple[Any, ...]:
        """Train to the end of the run, or of the process; return the outcome."""
        monkeypatch.setattr(training, "run_iteration", self._iterate)
        monkeypatch.setattr(evaluation, "evaluate", self.evaluator.evaluate)

        async def whole() -> None:
            first = await recovery.restore(self.run) if resumes else 0
            if not resumes:
                await begin(self.run)
            await run_after(self.run, first)

        if self._ends_at:
            with pytest.raises(Killed):
                asyncio.run(whole())
        else:
            asyncio.run(whole())
        return outcome_of(self.run)


def new_run(config: RunConfig) -> Any:
    return run_in(RunFolder.create(config), config)


@pytest.fixture
def between(config_of: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ...]:
    """The outcome of a run that evaluates between iterations."""
    outcome = Life(new_run(config_of("between")), Evaluator()).live(monkeypatch)
    rates = [line["eval/greedy_success_rate"] for line in outcome[3] if "eval/greedy_success_rate" in line]
    assert len(set(rates)) == 4, "the rates depend on the weights"
    return outcome


@pytest.mark.parametrize("staleness", [0, 2])
def test_training_goes_on_beside_an_evaluation(
    config_of: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch, staleness: int
) -> None:
    words = (f"rollout.max_staleness={staleness}", "algorithm.old_log_probs=proximal")
    between = Life(new_run(config_of("between", *words)), Evaluator()).live(monkeypatch)
    evaluator = Evaluator(lag=EVERY)
    run = new_run(config_of("beside", "evaluation.beside=true", *words))
    assert Life(run, evaluator).live(monkeypatch) == between
    assert evaluator.evaluated == [(0, 3), (3, 6), (6, 7), (7, 7)]
    assert evaluator.most_held == 1 and not run.session.held
    assert not run.folder.evaluating.committed() and not (run.folder.path / "evaluations").exists()


def test_a_failure_beside_an_evaluation_changes_nothing(
    config_of: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch, between: tuple[Any, ...]
) -> None:
    evaluator = Evaluator(lag=EVERY)
    run = new_run(config_of("beside", "evaluation.beside=true"))
    assert Life(run, evaluator, fails_at=5).live(monkeypatch) == between
    assert [version for version, _ in evaluator.evaluated] == [0, 3, 6, 7]


def test_a_lost_worker_of_an_evaluation_repeats_it(
    config_of: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch, between: tuple[Any, ...]
) -> None:
    evaluator = Evaluator(lag=1, fails={3: LOST})
    run = new_run(config_of("beside", "evaluation.beside=true"))
    assert Life(run, evaluator).live(monkeypatch) == between
    assert [version for version, _ in evaluator.evaluated] == [0, 3, 3, 6, 7]


def test_a_bug_in_an_evaluation_ends_the_run(
    config_of: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(config_of("beside", "evaluation.beside=true"))
    with pytest.raises(ValueError, match="a bug"):
        Life(run, Evaluator(fails={3: ValueError("a bug")})).live(monkeypatch)
    assert run.folder.checkpoints.committed()[-1] < 6, "it does not wait for the next evaluation"


@pytest.mark.parametrize("damaged", [None, 3, 5], ids=["intact", "the evaluated", "the last"])
def test_a_new_process_evaluates_the_version_that_is_not_recorded(
    config_of: Callable[..., RunConfig],
    monkeypatch: pytest.MonkeyPatch,
    between: tuple[Any, ...],
    damaged: int | None,
) -> None:
    config = config_of("beside", "evaluation.beside=true")
    Life(new_run(config), Evaluator(lag=EVERY), ends_at=6).live(monkeypatch)
    folder = RunFolder(config.run_dir)
    assert (folder.checkpoints.committed(), folder.evaluating.committed()) == ([0, 5], [3])
    rows = folder.evaluations.folder(3, "evaluate_greedy")
    for late in (rows, folder.evaluations.folder(6, "evaluate_greedy")):
        late.mkdir(parents=True)
    if damaged is not None:
        (folder.checkpoints_of(damaged).folder(damaged) / "updates" / "0").write_text("70")
    evaluator = Evaluator()
    again = Life(run_in(folder, config), evaluator)
    assert again.live(monkeypatch, resumes=True) == between
    assert [version for version, _ in evaluator.evaluated] == [3, 6, 7]
    assert (folder.checkpoints.committed(), folder.evaluating.committed()) == ([0, 7], [])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("evaluation.own_worker=true",), "own_worker=true: only used with beside=true"),
        (("evaluation.rows_per_part=4",), "rows_per_part=4: only used with beside=true and own_worker=false"),
        (
            ("evaluation.beside=true", "evaluation.own_worker=true", "evaluation.rows_per_part=4"),
            "rows_per_part=4: only used with beside=true and own_worker=false",
        ),
    ],
)
def test_keys_that_do_not_fit_are_refused(config_of: Callable[..., RunConfig], words: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_of("refused", *words)
