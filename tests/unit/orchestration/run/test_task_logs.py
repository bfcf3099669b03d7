"""The log line at the end of a task run."""

import logging
from types import SimpleNamespace

import pytest
from prefect.states import Completed, Failed, State
from prefect.task_engine import AsyncTaskRunEngine

import embodyflow.orchestration.run.iterations.nodes  # noqa: F401 installs the filter


@pytest.mark.parametrize(
    ("state", "is_logged"),
    [(Completed(), False), (Failed(message="no"), True), (Completed(name="Cached"), True)],
    ids=str,
)
def test_only_plain_completion_is_not_logged(state: State, is_logged: bool, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("prefect.task_runs")
    logger.addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.INFO, logger.name):
            engine = SimpleNamespace(task_run=True, state=state, logger=logger)
            AsyncTaskRunEngine.log_finished_message(engine)  # type: ignore[arg-type]
    finally:
        logger.removeHandler(caplog.handler)
    assert bool(caplog.messages) is is_logged
