"""A mistake that only the cluster can detect is one line too, and leaves nothing behind."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import prefect.runtime
import pytest

import embodyflow.orchestration.request.command_line
from embodyflow.config import RunConfig
from embodyflow.errors import ConfigError
from embodyflow.orchestration.request.request import RunRequest, check, open_folder
from embodyflow.orchestration.run import cluster, training
from embodyflow.process.ports import free_port
from embodyflow.record.run_folder import RunFolder
from flows.grpo import grpo

ANSWER = "cluster.gpus_per_worker=1: 3 workers need 3 GPUs, the Ray cluster has 0"


def test_the_message_is_the_last_line_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ConfigError(ANSWER)

    monkeypatch.setattr(sys, "argv", ["flows.grpo", f"run_root={tmp_path}", "iterations=1"])
    monkeypatch.setattr(embodyflow.orchestration.request.command_line, "run_flow", refuse)
    with pytest.raises(SystemExit) as end:
        embodyflow.orchestration.request.command_line.main(grpo)
    assert end.value.code == 2
    assert capsys.readouterr().err == f"{ANSWER}\n"


@pytest.mark.parametrize(("error", "is_kept"), [(ConfigError(ANSWER), False), (RuntimeError("a bug"), True)])
def test_prefects_log_has_no_traceback_of_a_mistake(error: Exception, is_kept: bool) -> None:
    record = logging.LogRecord("prefect.flow_runs", logging.ERROR, "", 0, "raised %r", (error,), (None, error, None))  # type: ignore[arg-type]
    assert embodyflow.orchestration.request.command_line._without_traceback(record)
    assert (record.exc_info is not None) is is_kept


@pytest.mark.parametrize("done", [None, 1], ids=["nothing-committed", "committed"])
def test_the_run_id_of_a_refused_run_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: int | None) -> None:
    @asynccontextmanager
    async def open_run(*_: Any) -> AsyncIterator[None]:
        raise ConfigError(ANSWER)
        yield

    flow_run = SimpleNamespace(id="0123456789abcdef", run_count=1, name="mine")
    monkeypatch.setattr(prefect.runtime, "flow_run", flow_run)
    monkeypatch.setattr(training, "get_run_logger", lambda: logging.getLogger(__name__))
    monkeypatch.setattr(training, "open_run", open_run)
    request = RunRequest(run_id="mine", overrides=(f"run_root={tmp_path}",))
    if done is not None:
        folder = open_folder(request, check(request))
        folder.checkpoints.begin(done)
        folder.checkpoints.commit(done, {}, keep=2)
        request = RunRequest(resume="mine", overrides=(f"run_root={tmp_path}",))
    with pytest.raises(ConfigError, match="workers need 3 GPUs"):
        asyncio.run(training.train(request))
    assert RunFolder(tmp_path / "mine").path.exists() is (done is not None)


def test_an_address_where_nothing_answers_is_one_line(
    tiny_config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_RESTART_SECONDS", 0.0)
    monkeypatch.setenv("RAY_ADDRESS", address := f"127.0.0.1:{free_port(0)}")
    message = f"RAY_ADDRESS={address}: nothing answers there; start that cluster, or unset RAY_ADDRESS"
    with pytest.raises(ConfigError, match=message), cluster.ray_cluster(tiny_config()):
        pass


def test_a_wait_for_the_head_that_ray_would_cut_short_is_one_line(
    tiny_config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_RESTART_SECONDS", 0.0)
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free_port(0)}")
    config = tiny_config("cluster.head_timeout=100")
    with pytest.raises(ConfigError, match=r"^cluster\.head_timeout=100: Ray ends .* 60 s") as refused:
        cluster.ray_cluster(config).__enter__()
    [variable] = [word for word in str(refused.value).split() if word.startswith("RAY_")]
    monkeypatch.setenv(variable, "120")
    with pytest.raises(ConfigError, match="nothing answers there"):
        cluster.ray_cluster(config).__enter__()
