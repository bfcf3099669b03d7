"""When a warm start with a stated quality ends."""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from embodyflow.config.run import WarmStartUntilConfig
from embodyflow.data.metrics import last, mean
from embodyflow.orchestration.run import warm_start
from embodyflow.orchestration.run.iterations.nodes import CURRENT_RUN
from embodyflow.workers.calls import NodeWork


@dataclass
class Measured:
    """A session whose policy has the given success at each measurement, one after the other."""

    rates: Iterator[float]
    done: list[Any] = field(default_factory=list)

    async def publish_weights(self, version: int) -> str:
        self.done.append(version)
        return ""

    async def run_node(self, work: NodeWork) -> Any:
        if work.function == "tasks:measure_warm_start":
            return SimpleNamespace(metrics={"sft/success_rate": mean(next(self.rates), 8)})
        self.done.append((work.node_id, work.config))
        return SimpleNamespace(metrics={"sft/loss": last(1.0)})


def end_of(
    rates: list[float], until: WarmStartUntilConfig, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Any], dict[str, float]]:
    monkeypatch.setattr(warm_start, "get_run_logger", lambda: logging.getLogger(__name__))
    session = Measured(iter(rates))
    token = CURRENT_RUN.set(SimpleNamespace(session=session))  # type: ignore[arg-type]
    try:
        _, metrics = asyncio.run(warm_start._fit_until(until, 30, SimpleNamespace(metrics={})))  # type: ignore[arg-type]
    finally:
        CURRENT_RUN.reset(token)
    return session.done, metrics


def test_it_ends_at_the_first_measurement_with_the_quality(monkeypatch: pytest.MonkeyPatch) -> None:
    until = WarmStartUntilConfig(success=0.3, max_steps=100, every=20)
    done, metrics = end_of([0.1, 0.2, 0.3], until, monkeypatch)
    assert metrics == {"sft/success_rate": 0.3, "sft/reached": 1.0}
    fits = [("fit_50", {"num_steps": 20}), ("fit_70", {"num_steps": 20})]
    assert done == [-31, fits[0], -51, fits[1], -71], "each measurement sees the weights of its own step"


def test_it_goes_no_further_than_its_bound_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    until = WarmStartUntilConfig(success=0.3, max_steps=60, every=20)
    done, metrics = end_of([0.0, 0.1, 0.25], until, monkeypatch)
    assert metrics == {"sft/success_rate": 0.25, "sft/reached": 0.0}
    assert [each for each in done if isinstance(each, tuple)] == [
        ("fit_50", {"num_steps": 20}),
        ("fit_60", {"num_steps": 10}),
    ]
    line = "warm_start.until.success=0.3: not reached; sampled success is 0.250 after warm_start.until.max_steps=60"
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [line]


def test_a_good_policy_takes_no_further_step(monkeypatch: pytest.MonkeyPatch) -> None:
    until = WarmStartUntilConfig(success=0.3, max_steps=60)
    done, metrics = end_of([0.9], until, monkeypatch)
    assert done == [-31] and metrics["sft/reached"] == 1.0
