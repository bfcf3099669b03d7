"""``embodyflow runs`` and ``embodyflow logs``."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from embodyflow.cli.main import main
from embodyflow.cli.run_folders.runs import short_age
from embodyflow.errors import ConfigError
from embodyflow.orchestration.request.request import RunRequest, check, parse_arguments
from embodyflow.record.run_folder import RunFolder

SMALL = ("env.max_steps=20", "evaluation.num_goals=2")
NOW = 1_800_000_000.0


@pytest.fixture(autouse=True)
def quiet_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embodyflow.stack.signals.exit_on_signals", lambda: None)
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embodyflow.cli.run_folders.runs.time.time", lambda: NOW)


def make(root: Path, run_id: str, age: float, records: list[dict[str, object]], committed: int | None) -> RunFolder:
    folder = RunFolder.create(check(RunRequest(iterations=4, run_id=run_id, overrides=(f"run_root={root}", *SMALL))))
    for record in records:
        folder.metrics.append(record)
    for iteration in range(0 if committed is None else committed + 1):
        folder.checkpoints.begin(iteration)
        folder.checkpoints.commit(iteration, {}, keep=2)
    os.utime(folder.path / "config.yaml", (NOW - age,) * 2)
    return folder


@pytest.mark.usefixtures("stopped_clock")
def test_runs_are_listed_with_their_states(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluated = {"iteration": 2, "eval/greedy_success_rate": 0.75}
    trained: list[dict[str, object]] = [{"iteration": n, "rollout/success_rate": n / 8} for n in (1, 2)]
    done = make(tmp_path, "done", 3 * 86400.0, [*trained, evaluated], 2)
    done.write_summary({})
    make(tmp_path, "stopped", 7300.0, trained, 2)
    make(tmp_path, "fresh", 140.0, [], None)
    evaluation = make(tmp_path, "judged", 90.0, [], None)
    evaluation.write_evaluation({"mean_success_rate": {"greedy": 0.5, "sampled": 0.25}})
    with make(tmp_path, "busy", 65.0, trained[:1], 0).locked():
        assert main(["runs", "--run-root", str(tmp_path)]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["state", "experiment", "iteration", "success", "age", "folder"]
    assert [row.split() for row in rows] == [
        ["finished", "embodied", "2/4", "0.750", "3", "d", str(tmp_path / "done")],
        ["stopped", "embodied", "2/4", "0.250", "2", "h", str(tmp_path / "stopped")],
        ["not", "started", "embodied", "0/4", "2", "min", str(tmp_path / "fresh")],
        ["finished", "embodied", "evaluation", "0.500", "1", "min", str(tmp_path / "judged")],
        ["running", "embodied", "1/4", "0.125", "1", "min", str(tmp_path / "busy")],
    ]


def test_a_missing_folder_of_runs_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "--run-root", str(tmp_path / "none")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"--run-root={tmp_path}/none: no such folder")


@pytest.mark.parametrize("content", [b"policy: [", b"- a\n", b"", b"\xff\xfe\x00", b"job: embodied\n"])
def test_a_damaged_configuration_is_one_line_and_hides_no_other_run(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("good", "bad"):
        make(tmp_path / "runs", name, 0.0, [{"iteration": 1, "perf/iteration_seconds": 2.0}], 1)
    (tmp_path / "runs" / "bad" / "config.yaml").write_bytes(content)
    assert main(["runs"]) == 0
    output = capsys.readouterr()
    assert sorted(row.split()[0] for row in output.out.splitlines()[1:]) == ["damaged", "stopped"]
    assert output.err.startswith("runs/bad/config.yaml: is ") and len(output.err.splitlines()) == 1
    for words in (
        *(["explain", "bad"], ["compare", "good", "bad"], ["plan", "--from", "bad"]),
        *(["replay", "runs/bad", "0"], ["export-dataset", "runs/bad"]),
    ):
        assert main(words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "runs/bad/config.yaml: is " in line, words
    for word in ("resume=bad", "branch.run=bad"):
        with pytest.raises(ConfigError, match=r"^runs/bad/config\.yaml: is .*\Z"):
            parse_arguments([word])


def test_a_damaged_result_is_named(tmp_path: Path) -> None:
    folder = make(tmp_path, "mine", 0.0, [], None)
    for read, name in ((folder.summary, "summary"), (folder.evaluation, "evaluation")):
        assert read() is None
        for content in ("{", "[]", "null"):
            (folder.path / f"{name}.json").write_text(content)
            with pytest.raises(ConfigError, match=rf"mine/{name}\.json: is damaged: "):
                read()


def test_the_log_of_a_run_is_found_by_its_name_or_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make(tmp_path, "mine", 0.0, [], None)
    assert main(["logs", "mine", "--run-root", str(tmp_path)]) == 2
    assert "has no run.log" in capsys.readouterr().err
    folder.log_path.write_text("first\nsecond\n")
    for words in (["mine", "--run-root", str(tmp_path)], [str(folder.path)]):
        assert main(["logs", *words]) == 0
        assert capsys.readouterr().out == "first\nsecond\n"
    assert main(["logs", "yours", "--run-root", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"yours: {tmp_path}/ has no such run; `embodyflow runs` lists them\n"


def test_a_followed_log_ends_with_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(tmp_path, "mine", 0.0, [], None)
    folder.log_path.write_text("first\n")
    locked, end = threading.Event(), threading.Event()

    def run() -> None:
        with folder.locked():
            locked.set()
            end.wait(10.0)
            with folder.log_path.open("a") as log:
                log.write("last\n")

    worker = threading.Thread(target=run)
    worker.start()
    assert locked.wait(10.0)
    threading.Timer(0.3, end.set).start()
    assert main(["logs", "mine", "--follow", "--run-root", str(tmp_path)]) == 0
    worker.join()
    assert capsys.readouterr().out == "first\nlast\n"


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0 s"), (59.9, "59 s"), (60.0, "1 min"), (7199.0, "1 h"), (172800.0, "2 d")]
)
def test_an_age_has_one_unit(seconds: float, words: str) -> None:
    assert short_age(seconds) == words


def test_damaged_metrics_do_not_hide_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(tmp_path, "mine", 0.0, [{"iteration": 1, "rollout/success_rate": 0.5}], None)
    with folder.metrics.path.open("a") as file:
        file.write('{"iter\n[1]\n' + json.dumps({"iteration": 2, "rollout/success_rate": 0.25}))
    assert main(["runs", "--run-root", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[3:5] == ["2/4", "0.250"]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("metrics.jsonl", None, "bad/metrics.jsonl: Is a directory"),
        ("summary.json", "[", ""),
        ("evaluation.json", '{"mean_success_rate": []}', "bad: is damaged: TypeError: list indices must be"),
        ("metrics.jsonl", '{"iteration": 1, "rollout/success_rate": "a"}\n', "bad: is damaged: ValueError: could not"),
    ],
    ids=["a folder", "never read", "other JSON", "a word"],
)
def test_a_run_that_cannot_be_read_hides_no_other(
    name: str,
    content: str | None,
    reason: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for each in ("bad", "good"):
        make(tmp_path / "runs", each, 0.0, [], 1)
    path = tmp_path / "runs" / "bad" / name
    if content is None:
        path.mkdir()
    else:
        path.write_text(content)
    assert main(["runs"]) == 0
    output = capsys.readouterr()
    states = [row.split()[0] for row in output.out.splitlines()[1:]]
    assert output.err.startswith(f"runs/{reason}" if reason else "") and len(output.err.splitlines()) == bool(reason)
    assert sorted(states) == ["damaged" if reason else "finished", "stopped"]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: path.symlink_to(path.name), "is damaged: [Errno 40] Too many levels of symbolic links"),
        (lambda path: path.symlink_to("nowhere"), "is damaged: [Errno 2] No such file or directory"),
        (os.mkfifo, "is damaged: it is a pipe"),
    ],
    ids=["links in a circle", "a link to nothing", "a pipe"],
)
def test_a_configuration_that_is_no_file_hides_no_run(
    spoil: Callable[[Path], None], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for each in ("bad", "good"):
        make(tmp_path, each, 0.0, [], 1)
    (tmp_path / "bad" / "config.yaml").unlink()
    spoil(tmp_path / "bad" / "config.yaml")
    (tmp_path / "no run").mkdir()
    (tmp_path / "notes").write_text("")
    assert main(["runs", "--run-root", str(tmp_path)]) == 0
    output = capsys.readouterr()
    assert sorted(row.split()[0] for row in output.out.splitlines()[1:]) == ["damaged", "stopped"]
    assert output.err.startswith(f"{tmp_path}/bad/config.yaml: {reason}") and len(output.err.splitlines()) == 1


def test_a_configuration_of_another_version_names_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(tmp_path, "mine", 0.0, [], 1).path
    with (folder / "config.yaml").open("a") as config:
        config.write("future_key: 1\n")
    (folder / "ledger.jsonl").touch()
    for command in (["explain"], ["episodes"], ["export-dataset"], ["reproduce"], ["plan", "--from"]):
        assert main([*command, str(folder)]) == 2, command
        error = capsys.readouterr().err
        name = "mine" if command[0] == "plan" else folder
        assert error.startswith(f"{name}: its config.yaml is not valid in this version: future_key: no such key")
