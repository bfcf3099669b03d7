"""Spans on their way to a collector that takes them, refuses them or is not there."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
from collectors import collector
from recorded_processes import Work, write_process

from embodyflow.cli.main import main
from embodyflow.config import RunConfig
from embodyflow.process.tracing import recording, span
from embodyflow.record.otlp import live
from embodyflow.record.run_folder import RunFolder

FLOW_RUN = "0197a3b2-5c1d-7e3f-8a4b-1c2d3e4f5a6b"
RUN = Work(0, 9000, "run", "run", "run", {"run": "mine", "flow_run": FLOW_RUN})


@pytest.fixture
def folder(tiny_config: Callable[..., RunConfig], tmp_path: Path) -> RunFolder:
    return RunFolder.create(tiny_config(f"run_root={tmp_path}", "run_id=mine"))


def write_trace_of_a_run(folder: RunFolder, num_nodes: int = 2) -> None:
    nodes = [
        Work(i, i + 1, f"node {i}", "node", "nodes", {"error": "KeyError"}) for i in range(10, 10 + 2 * num_nodes, 2)
    ]
    write_process(folder.trace_folder, "flow", RUN, *nodes)


def test_a_finished_run_is_sent_in_batches(
    folder: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_trace_of_a_run(folder, num_nodes=700)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=secret")
    with collector() as found:
        for _ in range(2):
            assert main(["trace", "mine", "--run-root", str(tmp_path), "--otlp", f"{found.address}/"]) == 0
    output = capsys.readouterr().out
    assert output.splitlines()[-1] == f"701 spans sent; trace ids: {UUID(FLOW_RUN).hex}" and "secret" not in output
    assert found.num_requests == 4 and {each["authorization"] for each in found.headers} == {"secret"}
    assert found.spans[:701] == found.spans[701:]  # the same ids, so a collector does not have them twice
    root = found.named("run")[0]
    assert (root.trace_id, root.parent_id) == (UUID(FLOW_RUN).hex, "")
    assert (root.begin, root.end) == (1000 * 10**9, 1000 * 10**9 + 9_000_000)
    assert root.attributes["prefect.run.id"] == FLOW_RUN and root.resource["service.name"] == "embodyflow"
    node = found.named("node 10")[0]
    assert node.parent_id == root.span_id and node.error == node.attributes["error.type"] == "KeyError"


def test_a_collector_that_refuses_is_named(
    folder: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_trace_of_a_run(folder)
    with collector() as found:
        found.status = 401
        assert main(["trace", "mine", "--run-root", str(tmp_path), "--otlp", found.address]) == 2
    assert main(["trace", "mine", "--run-root", str(tmp_path), "--otlp", "localhost:4318"]) == 2
    refused, misspelt = capsys.readouterr().err.splitlines()
    assert refused.startswith(f"--otlp {found.address}: ") and "401" in refused
    assert misspelt == "--otlp: must be an address such as http://localhost:4318, not localhost:4318"


def test_training_goes_on_without_its_collector_and_spans_wait_for_it(
    folder: RunFolder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "EVERY_SECONDS", 0.01)
    with collector() as found, caplog.at_level(logging.WARNING):
        found.status = 400
        with (
            live.spans_sent(folder, found.address),
            recording(folder.trace_folder, "flow"),
            span("run", "run", track="run", run="mine", flow_run=FLOW_RUN),
        ):
            for index in range(3):
                with span(f"iteration {index}", "iteration", track="iterations", iteration=index):
                    asked = found.num_requests
                deadline = time.monotonic() + 60
                while found.num_requests < asked + 2 and time.monotonic() < deadline:
                    time.sleep(0.01)
            assert not found.spans
            found.status = 200
    assert sorted(each.name for each in found.spans) == ["iteration 0", "iteration 1", "iteration 2", "run"]
    assert len(found.by_id()) == 4
    [warning] = caplog.messages
    later = f"`embodyflow trace {folder.path} --otlp {found.address}` sends all spans later"
    assert warning.startswith("tracking.otlp: ") and warning.endswith(later)


def test_spans_are_sent_while_the_run_is_at_work(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "EVERY_SECONDS", 0.01)
    with collector() as found:
        with (
            live.spans_sent(folder, found.address),
            recording(folder.trace_folder, "flow"),
            span("run", "run", track="run", run="mine", flow_run=FLOW_RUN),
        ):
            with span("iteration 1", "iteration", track="iterations", iteration=1):
                pass
            deadline = time.monotonic() + 60
            while not found.spans and time.monotonic() < deadline:
                time.sleep(0.01)
            assert [each.name for each in found.spans] == ["iteration 1"]
        assert [each.name for each in found.spans] == ["iteration 1", "run"]
        assert found.parent(found.spans[0]).name == "run"
