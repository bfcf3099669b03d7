"""A disk that is full, not writable or loses the run's folder ends a run in one line."""

import asyncio
import errno
import logging
import os
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import ray
from counting_run import begin, iterate, run_in

from embodyflow.config import RunConfig
from embodyflow.errors import BufferFullError, ConfigError, DiskFullError, StorageError, WorkerLostError
from embodyflow.orchestration.request.request import RunRequest
from embodyflow.orchestration.run import recovery, stages, training
from embodyflow.orchestration.run.iterations import nodes
from embodyflow.orchestration.run.storage_faults import storage_fault
from embodyflow.record.run_folder import RunFolder


@pytest.fixture(autouse=True)
def outside_of_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (nodes, recovery, stages, training):
        monkeypatch.setattr(module, "get_run_logger", lambda: logging.getLogger("storage"))


@pytest.fixture
def config(tiny_config: Callable[..., RunConfig], tmp_path: Path) -> RunConfig:
    return tiny_config(f"run_root={tmp_path}/runs", "run_id=mine")


def full() -> OSError:
    """Return the error of a write to a full disk."""
    try:
        with open("/dev/full", "w") as file:
            file.write("x")
    except OSError as error:
        return error
    raise AssertionError("the device is not full")


def of_a_worker(error: Exception) -> Exception:
    """Return an error as Ray raises it in the driver."""
    text = f"Traceback (most recent call last):\n{type(error).__name__}: {error}"
    wrapped: Exception = ray.exceptions.RayTaskError("save", text, error, "worker", 1, "here").as_instanceof_cause()
    return wrapped


def chained(cause: Exception) -> Exception:
    try:
        raise RuntimeError("the checkpoint was not written") from cause
    except RuntimeError as error:
        return error


NO_SPACE = r"runs/mine: No space left on device; \d+ MB are free; make room and restart the run"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (full(), NO_SPACE),
        (of_a_worker(full()), NO_SPACE),
        (ExceptionGroup("nodes", [ValueError("beside it"), ExceptionGroup("more", [of_a_worker(full())])]), NO_SPACE),
        (chained(full()), NO_SPACE),
        (
            of_a_worker(ValueError("I/O error: No space left on device (os error 28)")),
            r"runs/mine: I/O error: No space left on device \(os error 28\); .* MB are free; make room",
        ),
        (
            of_a_worker(RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed")),
            r"runs/mine: PytorchStreamWriter failed .* MB are free; make room",
        ),
        (OSError(errno.EROFS, "", "/elsewhere/x"), r"^/elsewhere/x: Read-only file system; .*; make it writable and"),
    ],
    ids=["write", "worker", "group", "cause", "rust", "torch", "read-only"],
)
def test_a_failure_of_the_disk_is_one_line(config: RunConfig, error: Exception, line: str) -> None:
    fault = storage_fault(error, RunFolder.create(config))
    assert fault is not None and "\n" not in str(fault)
    with pytest.raises(StorageError, match=line):
        raise fault


def test_the_line_has_the_size_of_a_checkpoint_and_the_command_to_resume(config: RunConfig) -> None:
    folder = RunFolder.create(config)
    (folder.checkpoints.begin(0) / "state").write_bytes(bytes(3_000_000))
    folder.checkpoints.commit(0, {}, keep=1)
    free = shutil.disk_usage(folder.path).free / 1e6
    line = str(storage_fault(full(), folder))
    before, _, after = line.partition("; a checkpoint takes 3 MB and ")
    assert before == f"{folder.path}: No space left on device"
    assert after.endswith(" MB are free; make room and resume=mine") and abs(int(after.split()[0]) - free) < 1000


def test_a_folder_of_the_run_that_is_not_writable_is_a_fault_and_another_file_is_not(config: RunConfig) -> None:
    folder = RunFolder.create(config)
    denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder.path / "metrics.jsonl"))
    assert "metrics.jsonl: Permission denied; " in str(storage_fault(denied, folder))
    assert storage_fault(PermissionError(errno.EACCES, "", "/root/data"), folder) is None


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a bug"),
        FileNotFoundError(errno.ENOENT, "", "/data"),
        WorkerLostError("gone"),
        of_a_worker(BufferFullError("No space left on device: raise cluster.buffer.memory")),
        ConfigError("key: is wrong"),
    ],
    ids=["bug", "missing", "lost", "buffer", "configuration"],
)
def test_other_errors_stay_what_they_are(config: RunConfig, error: Exception) -> None:
    assert storage_fault(error, RunFolder.create(config)) is None


def test_a_full_disk_that_a_checkpoint_reports_itself_keeps_its_line(config: RunConfig) -> None:
    known = DiskFullError("runs/mine/checkpoints: a checkpoint takes 9 MB")
    assert storage_fault(ExceptionGroup("commit", [known]), RunFolder.create(config)) is known


def remove(folder: RunFolder) -> None:
    shutil.rmtree(folder.path)


def replace_by_another_run(folder: RunFolder) -> None:
    remove(folder)
    folder.path.mkdir()
    (folder.path / ".lock").write_text("1")


@pytest.mark.parametrize("disturb", [remove, replace_by_another_run])
@pytest.mark.parametrize("point", ["before the step", "in the step", "at the commit", "at a failure"])
def test_a_run_whose_folder_is_removed_ends_and_creates_nothing(
    config: RunConfig, disturb: Callable[[RunFolder], None], point: str
) -> None:
    folder = RunFolder.create(config)
    run = run_in(folder, config)
    left: list[Path] = []

    def lose() -> None:
        disturb(folder)
        left.extend(sorted(folder.path.rglob("*")))

    async def step() -> None:
        if point == "in the step":
            lose()
        if point == "at a failure":
            lose()
            raise WorkerLostError("a worker is gone")
        if point == "at the commit":
            train = run.session.train
            run.session.train = lambda report: (train(report), lose())
        await iterate(run, 1)
        await run.stages.drain()

    async def whole() -> None:
        await begin(run)
        await run.stages.drain()
        if point == "before the step":
            lose()
        await recovery.with_recovery(run, "iteration 1", step)

    with folder.locked():
        with pytest.raises((StorageError, FileNotFoundError)) as caught:
            asyncio.run(whole())
        assert str(storage_fault(caught.value, folder)) == (
            f"{folder.path}: was removed while the run was at work; start another run"
        )
    if disturb is remove:
        assert not folder.path.exists()
    elif point != "in the step":  # rows of a rollout in flight may reach the other run, which replaces them
        assert sorted(folder.path.rglob("*")) == left


def train_until(
    fail: Callable[[RunFolder], Coroutine[Any, Any, None]], config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> BaseException:
    """Return the error of a run whose start does ``fail``."""
    folder = RunFolder.create(config)

    @asynccontextmanager
    async def open_run(*_: object) -> AsyncIterator[None]:
        await fail(folder)
        yield

    monkeypatch.setattr(training, "bind_to_flow_run", lambda request: request)
    monkeypatch.setattr(training, "check", lambda request, starts: config)
    monkeypatch.setattr(training, "open_folder", lambda request, config: folder)
    monkeypatch.setattr(training, "open_run", open_run)
    with pytest.raises(Exception) as caught:
        asyncio.run(training.train(RunRequest()))
    return caught.value


@pytest.mark.parametrize("error", [full(), ConfigError("key: is wrong"), WorkerLostError("late"), ValueError("a bug")])
def test_a_failure_before_the_first_commit_frees_the_name(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def fail(folder: RunFolder) -> None:
        raise error

    raised = train_until(fail, config, monkeypatch)
    assert raised is error or (isinstance(raised, StorageError) and raised.__cause__ is error)
    assert not list(Path(config.run_root).iterdir())
    RunFolder.create(config)


def test_a_failure_after_a_commit_keeps_the_folder(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(folder: RunFolder) -> None:
        folder.checkpoints.begin(0)
        folder.checkpoints.commit(0, {}, keep=1)
        raise full()

    assert "make room and resume=mine" in str(train_until(fail, config, monkeypatch))
    assert RunFolder(config.run_dir).checkpoints.committed() == [0]


def test_a_folder_that_cannot_be_removed_does_not_hide_the_failure(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(folder: RunFolder) -> None:
        def refuse() -> None:
            raise OSError(errno.EROFS, "Read-only file system")

        monkeypatch.setattr(folder, "remove", refuse)
        raise ValueError("a bug")

    raised = train_until(fail, config, monkeypatch)
    assert str(raised) == "a bug" and "was not removed" in raised.__notes__[0]
