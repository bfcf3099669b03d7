"""A worker's handling of weights and outputs, with a fake engine and without Ray."""

import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from node_calls import call_of

from embodyflow.data.batches import to_batch
from embodyflow.data.plans.row_plan import ShardRef, WeightsRef
from embodyflow.data.segment import Segment
from embodyflow.errors import NodeTimeoutError
from embodyflow.types import NodeOutput
from embodyflow.workers.calls import ChainCall
from embodyflow.workers.rank.profiles import Profiles
from embodyflow.workers.rank.worker import Worker


class Engine:
    """Loads weights one by one; version 6 is interrupted halfway."""

    def __init__(self) -> None:
        self.weights = {"first": 0.0, "last": 0.0}

    def update_weights(self, weights: dict[str, Any], version: int) -> None:
        for name, value in weights.items():
            if name == "last" and version == 6:
                raise NodeTimeoutError("node rollout took longer than 1 s")
            self.weights[name] = float(value)


def test_half_loaded_weights_are_not_taken_for_the_version_before() -> None:
    """A run goes back to an earlier version if the checkpoint of the newer one is damaged."""
    plain: Any = Worker
    worker = object.__new__(plain.__ray_metadata__.modified_class)
    worker._engine, worker._engine_version = Engine(), -1
    worker._buffer = SimpleNamespace(
        get_weights=lambda weights: dict.fromkeys(("first", "last"), np.float64(weights.own.shard_id.split("/")[1]))
    )

    def load(version: int) -> None:
        weights = WeightsRef(ShardRef(f"weights/{version}/0", "here", 1))
        worker._load_weights(replace(call_of("rollout", policy_version=version), weights=weights))

    load(5)
    with pytest.raises(NodeTimeoutError):
        load(6)
    load(5)
    assert worker._engine.weights == {"first": 5, "last": 5}


def forgets_to_return(batch: Any, config: Any = None, **kwargs: Any) -> None:
    """Do the work of a node, but return nothing."""


def test_a_node_function_that_returns_no_output_is_named() -> None:
    plain: Any = Worker
    worker = object.__new__(plain.__ray_metadata__.modified_class)
    worker._engine = Engine()
    message = f"^node mine: {__name__}:forgets_to_return must return a NodeOutput, gave NoneType$"
    with pytest.raises(TypeError, match=message):
        worker._run(call_of("mine", function=f"{__name__}:forgets_to_return"))


def logs_much(batch: Any, config: Any = None, **kwargs: Any) -> NodeOutput:
    """Log as an environment does that warns in every step."""
    for step in range(5000):
        logging.getLogger("chatty").warning("step %d", step)
    return NodeOutput(None)


def passes_rows_on(batch: Any, config: Any = None, **kwargs: Any) -> NodeOutput:
    """Ignore the segment."""
    return NodeOutput(to_batch({"uid": np.arange(2)}))


def test_a_root_that_knows_no_segments_is_named() -> None:
    plain: Any = Worker
    worker = object.__new__(plain.__ray_metadata__.modified_class)
    worker._engine = Engine()
    function = f"{__name__}:passes_rows_on"
    call = call_of("mine", function=function, segment=Segment(0, is_last=False))
    with pytest.raises(
        TypeError, match=rf"^node mine: {function} passes rows on before its last segment; with rollout"
    ):
        worker._call_function(call, None)
    last = call_of("mine", function=function, segment=Segment(1, is_last=True))
    assert len(worker._call_function(last, None).batch) == 2


def test_the_log_of_a_node_is_limited() -> None:
    plain: Any = Worker
    worker = object.__new__(plain.__ray_metadata__.modified_class)
    worker._engine, worker._buffer = Engine(), SimpleNamespace(take_traffic=lambda: (0, 0))
    lines = worker._run(call_of("mine", function=f"{__name__}:logs_much")).logs
    assert [line.message for line in lines[:2]] == ["step 0", "step 1"]
    assert len(lines) == 1001 and lines[-1].message == "the node logged more than 1000 lines; the rest is dropped"


def is_stuck(batch: Any, config: Any = None, **kwargs: Any) -> NodeOutput:
    raise LookupError("the drawer is stuck")


def does_nothing(batch: Any, config: Any = None, **kwargs: Any) -> NodeOutput:
    return NodeOutput(None)


def test_a_node_that_failed_in_a_chain_raises_its_error_when_it_is_called_and_runs_when_it_is_retried() -> None:
    plain: Any = Worker
    worker = object.__new__(plain.__ray_metadata__.modified_class)
    worker._engine, worker._buffer = Engine(), SimpleNamespace(take_traffic=lambda: (0, 0))
    worker._kept_errors, worker._profiles = {}, Profiles(Path(), (), 0, "cpu")
    first = call_of("first", function=f"{__name__}:does_nothing", needs_model=False)
    stuck = call_of("stuck", function=f"{__name__}:is_stuck", needs_model=False)
    last = call_of("last", function=f"{__name__}:does_nothing")
    assert len(worker.run_chain(ChainCall("trainer", first, ((stuck, ("first",)), (last, ("stuck",)))))) == 1
    retried = replace(stuck, work=replace(stuck.work, function=f"{__name__}:does_nothing"))
    with pytest.raises(LookupError, match="the drawer is stuck"):
        worker.run_compute_node(retried)
    assert worker.run_compute_node(retried).shard is None
