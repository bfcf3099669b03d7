"""``embodyflow reproduce`` trains again what the record says, and names the first difference."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from counting_run import begin, iterate, leave_flows, run_after, run_in
from language_jobs import language_config
from streamed_run import ITERATIONS, config_of, open_stream, train

from embodyflow.cli.main import main
from embodyflow.cli.reproduction import reproduce
from embodyflow.cli.reproduction.comparison import difference
from embodyflow.cli.reproduction.scratch_run import prepare
from embodyflow.cli.reproduction.span import Span, span_of
from embodyflow.config import RunConfig
from embodyflow.config.composition.compose import validate_config
from embodyflow.config.language import LanguageConfig
from embodyflow.orchestration.run import recovery, training
from embodyflow.record.episodes.labelled_episodes import LABELLED
from embodyflow.record.ledger import Ledger
from embodyflow.record.run_folder import RunFolder

ORDERS = {
    "ahead": ["rollout.mode=iterations"],
    "by_index": [],
    "first_ready": ["rollout.order=first_ready"],
    "published": ["rollout.order=first_ready", "rollout.interrupt.when=published"],
}


@pytest.fixture(autouse=True)
def outside_of_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_flows(monkeypatch)
    monkeypatch.setattr(training, "run_iteration", iterate)
    monkeypatch.setattr(training, "log_progress", lambda *_: None)
    monkeypatch.setattr(reproduce, "_trained", trained)


@contextmanager
def trained(scratch: RunFolder, config: RunConfig, span: Span) -> Iterator[Any]:
    """Train the scratch run in this process, with other arrival times."""
    values = scratch.config() | {"run_root": str(scratch.path.parent), "run_id": scratch.path.name}
    repeated = validate_config(values | {"iterations": span.last})
    assert isinstance(repeated, LanguageConfig) and not repeated.tracking.tensorboard
    asyncio.run(whole(scratch, repeated, seed=7, resumed=True))
    yield SimpleNamespace(poll=lambda: 0, wait=lambda: 0)


async def whole(folder: RunFolder, config: LanguageConfig, seed: int, *, resumed: bool = False) -> None:
    run = open_stream(folder, config, seed) if config.streams else run_in(folder, config)
    last = await recovery.restore(run) if resumed else None
    if config.streams:
        await train(run, last)
    else:
        if last is None:
            await begin(run)
        await run_after(run, last or 0)
    folder.write_summary({})


def trained_run(root: Path, *words: str) -> RunFolder:
    config = config_of(root, "mine", *words)
    folder = RunFolder.create(config)
    asyncio.run(whole(folder, config, seed=0))
    return folder


def reproduced(folder: RunFolder, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str]]:
    code = main(["reproduce", "mine", "--run-root", str(folder.path.parent), *words])
    shown = capsys.readouterr()
    return code, (shown.out + shown.err).splitlines()


def rewrite(folder: RunFolder, iteration: int, kind: str = "commit", **facts: Any) -> None:
    """Write the ledger again, with other facts of an iteration."""
    entries = Ledger(folder.ledger_path).entries
    folder.ledger_path.unlink()
    ledger = Ledger(folder.ledger_path)
    for entry in entries:
        changed = facts if (entry.kind, entry.iteration) == (kind, iteration) else {}
        ledger.append(entry.kind, entry.iteration, entry.facts | changed)


@pytest.mark.parametrize("order", ORDERS)
def test_a_run_is_equal_to_its_record(order: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = trained_run(tmp_path, *ORDERS[order])
    code, lines = reproduced(folder, capsys)
    digests = [json.loads(line)["weights_digest"] for line in folder.metrics.path.open() if "digests" in line]
    assert code == 0 and len(digests) == ITERATIONS
    assert lines == [
        "starts from the checkpoint of iteration 0, which is not trained again",
        *(f"iteration {number}: equal, weights {digest[:12]}" for number, digest in enumerate(digests, 1)),
        f"equal: {2 * ITERATIONS} digests of iterations 1 to {ITERATIONS}",
    ]
    assert {path.name for path in tmp_path.iterdir()} == {"mine"}


def test_a_reproduction_has_the_labelled_episodes_that_the_run_began_with(tmp_path: Path) -> None:
    folder = trained_run(tmp_path, *ORDERS["ahead"])
    (folder.path / LABELLED).mkdir()
    (folder.path / LABELLED / "iteration-000000").write_bytes(b"1234")
    scratch = prepare(tmp_path / "scratch", folder, Ledger(folder.ledger_path), Span(1, 2), max_staleness=1)
    assert (scratch.path / LABELLED / "iteration-000000").read_bytes() == b"1234"


def test_a_reproduction_repeats_the_numbers_of_workers(tmp_path: Path) -> None:
    folder = trained_run(tmp_path, *ORDERS["ahead"])
    recorded = Ledger(folder.ledger_path)
    for iteration in range(1, 4):
        recorded.append("workers", iteration, {"number": iteration})
    scratch = prepare(tmp_path / "scratch", folder, recorded, Span(1, 2), max_staleness=1)
    repeated = Ledger(scratch.ledger_path)
    assert [entry[:2] for entry in repeated.entries] == [("workers", 1), ("workers", 2)]
    commit = recorded.newest("commit", 2)
    assert commit is not None
    repeated.append("commit", 2, commit)
    assert difference(recorded, repeated, 2, ["rollout"]) is None
    repeated.append("workers", 2, {"number": 1})
    assert difference(recorded, repeated, 2, ["rollout"]) == "its number of rollout workers differs"


def test_a_reproduction_has_the_values_that_a_roll_back_left_and_ends_before_other_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = trained_run(tmp_path, *ORDERS["ahead"])
    ledger = Ledger(folder.ledger_path)
    commits = {each: dict(ledger.newest("commit", each) or {}) for each in range(2, ITERATIONS + 1)}
    ledger.append("roll_back", 4, {"detector": "spike", "to": 2, "values": {"trainer.learning_rate": 5e-05}})
    for iteration, facts in commits.items():
        ledger.append("commit", iteration, facts)
    config = validate_config(folder.config())
    assert span_of(None, folder, config, ledger) == Span(1, 2)
    assert "iterations after 2 are left out: a roll-back changed trainer.learning_rate" in reproduced(folder, capsys)[1]
    scratches = [prepare(tmp_path / f"{span.last}", folder, ledger, span, 1) for span in (Span(1, 2), Span(5, 6))]
    rates = [each.config()["trainer"]["learning_rate"] for each in scratches]
    assert rates == [config.trainer.learning_rate, 5e-05]


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        ({"weights_digest": "0" * 64}, "iteration 3: weights differ: recorded 000000000000, now "),
        ({"digests": {"rollout": ["0" * 64]}}, "iteration 3: rows of node rollout, rank 0, differ: recorded 000000"),
        ({"digests": {"rollout": ["0", "1"]}}, "iteration 3: rows of node rollout differ: 2 ranks made them, now 1"),
        ({"metrics": {"loss": 0.5}}, "iteration 3: metric loss differs: recorded 0.5, now 0.33"),
    ],
)
def test_the_first_difference_is_named(
    facts: dict[str, Any], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = trained_run(tmp_path)
    rewrite(folder, 3, **facts)
    code, lines = reproduced(folder, capsys)
    assert code == 1 and lines[-3].startswith("iteration 2: equal") and lines[-2].startswith(line)
    assert lines[-1].startswith(f"the reproduction is kept in {tmp_path}/.reproduce-mine-")


def test_other_swaps_in_the_record_give_other_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = trained_run(tmp_path, *ORDERS["published"])
    ledger = Ledger(folder.ledger_path)
    iteration, facts = next(
        (entry.iteration, entry.facts) for entry in ledger.entries if entry.kind == "groups" and "swaps" in entry.facts
    )
    rewrite(folder, iteration, "groups", swaps={name: [] for name in facts["swaps"]})
    code, lines = reproduced(folder, capsys)
    assert code == 1 and lines[-2].startswith(f"iteration {iteration}: rows of node rollout, rank 0, differ: ")


def test_evaluations_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = trained_run(tmp_path)
    rewrite(folder, ITERATIONS, "evaluation", metrics={"eval/greedy_success_rate": 0.75})
    code, lines = reproduced(folder, capsys)
    assert code == 1
    assert lines[-2] == (
        f"after iteration {ITERATIONS}: evaluation eval/greedy_success_rate differs: recorded 0.75, now 0.5"
    )


def test_some_iterations_start_from_a_checkpoint_that_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = trained_run(tmp_path, *ORDERS["published"])
    assert folder.checkpoints.committed() == [0, 3, 4, 5, 6]  # of which rollouts ahead act with three
    code, lines = reproduced(folder, capsys, "--iterations", "6..6")
    assert code == 0 and lines[0].startswith("starts from the checkpoint of iteration 5")
    assert lines[-1] == "equal: 2 digests of iterations 6 to 6"
    refused = {
        "3..6": "--iterations 3..6: needs the checkpoints of iterations 1, 2, which the run does not have; a "
        "reproduction can start at 1, 6",
        "6..7": "--iterations 6..7: must lie in 1..6, the iterations that can be reproduced",
        "6": "--iterations 6: must be of the form first..last, such as 1..6",
    }
    for asked, line in refused.items():
        assert reproduced(folder, capsys, "--iterations", asked) == (2, [line])


def test_fewer_iterations_than_the_run_profiled_are_reproduced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = trained_run(tmp_path, f"trainer.profile.iterations=[{ITERATIONS}]")
    code, lines = reproduced(folder, capsys, "--iterations", "1..2")
    assert code == 0 and lines[-1] == "equal: 4 digests of iterations 1 to 2"


def test_what_cannot_be_reproduced_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = language_config(f"run_root={tmp_path}", "run_id=mine")
    folder = RunFolder.create(config)
    assert reproduced(folder, capsys) == (
        2,
        [f"{folder.path}: has no ledger.jsonl; allowed is the folder of a training run"],
    )
    Ledger(folder.ledger_path).append("commit", 0, {"weights_digest": "0"})
    assert reproduced(folder, capsys) == (
        2,
        [f"{folder.path}: has committed no iteration, so there is nothing to reproduce"],
    )


def test_a_damaged_checkpoint_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = trained_run(tmp_path)
    damaged = folder.checkpoints.folder(0) / "updates" / "0"
    damaged.write_text("70")
    code, lines = reproduced(folder, capsys)
    assert code == 1 and lines[-1] == f"{damaged} is missing or damaged"
