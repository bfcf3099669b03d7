"""The nodes of the default pipelines, with planned faults.

The workers of a run import this module, and meet the faults of :mod:`planned_faults` when a node starts. Two values of
``part`` make the node's function raise: ``exception`` raises as for a lost worker, ``bug`` as for a mistake in the
function. ``delay`` is in seconds after the start of the node; without it the process ends before the node starts.
Besides the graph's nodes there is ``commit``, which starts when the trainer is about to write a checkpoint.
"""

import functools
import os
import threading
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from planned_faults import claimed_faults, send_signal

import tasks
from embodyflow.errors import WorkerLostError
from embodyflow.types import NodeOutput
from pipelines import TaskGraph
from pipelines.control import ppo_control
from pipelines.grpo import embodied_grpo, language_grpo
from pipelines.rae import rae
from pipelines.sac import sac

COMMIT = "commit"


def graph() -> TaskGraph:
    """Return the default graph with the nodes of this module."""
    return _with_faulty_nodes(embodied_grpo())


def control_graph() -> TaskGraph:
    """Return the graph of control jobs with the nodes of this module."""
    return _with_faulty_nodes(ppo_control())


def sac_graph() -> TaskGraph:
    """Return the graph of off-policy training with the nodes of this module."""
    return _with_faulty_nodes(sac())


def language_graph() -> TaskGraph:
    """Return the graph of language jobs with the nodes of this module."""
    return _with_faulty_nodes(language_grpo())


def rae_graph() -> TaskGraph:
    """Return the graph of self-play with running baselines with the nodes of this module."""
    return _with_faulty_nodes(rae())


def streamed_graph() -> TaskGraph:
    """Return the graph of streamed language jobs: all nodes are of this module but the rollout."""
    return _with_faulty_nodes(language_grpo(), but=("rollout",))


def streamed_episodes_graph() -> TaskGraph:
    """Return the graph of streamed episodes: all nodes are of this module but the rollout."""
    return _with_faulty_nodes(embodied_grpo(), but=("rollout",))


def _with_faulty_nodes(whole: TaskGraph, but: Sequence[str] = ()) -> TaskGraph:
    faulty = TaskGraph(whole.graph_id, whole.description)
    for node in whole.nodes.values():
        name = node.executable_ref.partition(":")[2]
        function = node.executable_ref if node.node_id in but else f"faulty_nodes:{name}"
        faulty.add_node(node.model_copy(update={"executable_ref": function}))
    return faulty


def _inject_faults(call: Any, worker: Any) -> None:
    if getattr(worker, "rank", 0) != 0:
        return
    for fault in claimed_faults(call.node_id, call.iteration):
        if fault["part"] == "exception":
            raise WorkerLostError("planted")
        if fault["part"] == "bug":
            raise ValueError("planted")
        if "delay" in fault:
            threading.Timer(fault["delay"], send_signal, (fault, worker.config.run_dir)).start()
        else:
            send_signal(fault, worker.config.run_dir)


def _watch_commits(worker: Any) -> None:
    if hasattr(worker, "save") and "save" not in vars(worker):
        save = worker.save

        def save_with_faults(folder: str, *arguments: Any) -> None:
            iteration = int(folder.rpartition("-")[2])
            _inject_faults(SimpleNamespace(iteration=iteration, node_id=COMMIT), worker)
            save(folder, *arguments)

        worker.save = save_with_faults


SLOWING_DOWN = threading.Lock()
"""Nodes may run in several threads, and an import of transformers fails beside another one."""


@functools.cache
def _slow_down() -> None:
    """Let each pass of a rollout worker take as long as the environment says, so that versions come within rows."""
    if (seconds := float(os.environ.get("EMBODYFLOW_STEP_SECONDS", "0"))) == 0:
        return
    from embodyflow.generation.conversations.swapping import SwappingConversations  # takes seconds to import

    step = SwappingConversations.step

    def step_slowly(conversations: SwappingConversations) -> Any:
        time.sleep(seconds)
        return step(conversations)

    SwappingConversations.step = step_slowly  # type: ignore[method-assign]


def _faulty(name: str) -> Any:
    function = getattr(tasks, name)

    @functools.wraps(function)
    def run(batch: Any, config: Any = None, *, worker: Any, call: Any, **kwargs: Any) -> NodeOutput:
        with SLOWING_DOWN:
            _slow_down()
        _watch_commits(worker)
        _inject_faults(call, worker)
        output: NodeOutput = function(batch, config, worker=worker, call=call, **kwargs)
        return output

    return run


def _names(whole: TaskGraph) -> dict[str, str]:
    return {node.node_id: node.executable_ref.partition(":")[2] for node in whole.nodes.values()}


NODES, LANGUAGE_NODES, CONTROL_NODES = _names(embodied_grpo()), _names(language_grpo()), _names(ppo_control())
SAC_NODES, RAE_NODES = _names(sac()), _names(rae())
ALL_NODES = (NODES, LANGUAGE_NODES, CONTROL_NODES, SAC_NODES, RAE_NODES)
globals().update({name: _faulty(name) for each in ALL_NODES for name in each.values()})
