"""The nodes of the default pipelines, with planned faults.

The workers of a run import this module. The plan is a JSON file, named by ``EMBODYFLOW_FAULTS``, with a list of faults,
each of which happens once per run::

    {"iteration": 2, "node": "train_actor", "part": "trainer/0", "signal": "SIGKILL", "delay": 0.02}

``part`` names the process to signal, as in the run's ``processes.json``; with ``"below": true`` its first child process
is meant. Two other values make the node's function raise: ``exception`` raises as for a lost worker, ``bug`` as for a
mistake in the function. A process outside the run is given by its ``pid``. ``delay`` is in seconds after the start of
the node; without it the process ends before the node starts. Besides the graph's nodes there is ``commit``, which
starts when the trainer is about to write a checkpoint.
"""

import contextlib
import functools
import json
import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

import tasks
from embodyflow.errors import WorkerLostError
from embodyflow.types import NodeOutput
from pipelines import TaskGraph
from pipelines.control import ppo_control
from pipelines.grpo import embodied_grpo, language_grpo

COMMIT = "commit"


def graph() -> TaskGraph:
    """Return the default graph with the nodes of this module."""
    return _with_faulty_nodes(embodied_grpo())


def control_graph() -> TaskGraph:
    """Return the graph of control jobs with the nodes of this module."""
    return _with_faulty_nodes(ppo_control())


def language_graph() -> TaskGraph:
    """Return the graph of language jobs with the nodes of this module."""
    return _with_faulty_nodes(language_grpo())


def _with_faulty_nodes(whole: TaskGraph) -> TaskGraph:
    faulty = TaskGraph(whole.graph_id, whole.description)
    for node in whole.nodes.values():
        name = node.executable_ref.partition(":")[2]
        faulty.add_node(node.model_copy(update={"executable_ref": f"faulty_nodes:{name}"}))
    return faulty


def _inject_faults(call: Any, worker: Any) -> None:
    if getattr(worker, "rank", 0) != 0:
        return
    plan = Path(os.environ["EMBODYFLOW_FAULTS"])
    for index, fault in enumerate(json.loads(plan.read_text())):
        if (fault["iteration"], fault["node"]) == (call.iteration, call.node_id) and _claim(plan, index):
            if fault["part"] == "exception":
                raise WorkerLostError("planted")
            if fault["part"] == "bug":
                raise ValueError("planted")
            if "delay" in fault:
                threading.Timer(fault["delay"], _kill, (fault, worker.config)).start()
            else:
                _kill(fault, worker.config)


def _claim(plan: Path, index: int) -> bool:
    try:
        plan.with_name(f"{plan.name}.{index}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _kill(fault: dict[str, Any], config: Any) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):  # it ended by an earlier fault, or just now
        process = _process_of(fault, config)
        process.send_signal(signal.Signals[fault["signal"]])
        if fault["signal"] == "SIGKILL" and process.pid != os.getpid():
            while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.001)


def _process_of(fault: dict[str, Any], config: Any) -> psutil.Process:
    if "pid" in fault:
        return psutil.Process(fault["pid"])
    pids = json.loads((config.run_dir / "processes.json").read_text())
    [pid] = [pid for name, pid in pids.items() if name == fault["part"] or name.startswith(f"{fault['part']}/")][:1]
    process = psutil.Process(pid)
    return process.children()[0] if fault.get("below") else process


def _watch_commits(worker: Any) -> None:
    if hasattr(worker, "save") and "save" not in vars(worker):
        save = worker.save

        def save_with_faults(folder: str, *arguments: Any) -> None:
            iteration = int(folder.rpartition("-")[2])
            _inject_faults(SimpleNamespace(iteration=iteration, node_id=COMMIT), worker)
            save(folder, *arguments)

        worker.save = save_with_faults


def _faulty(name: str) -> Any:
    function = getattr(tasks, name)

    @functools.wraps(function)
    def run(batch: Any, config: Any = None, *, worker: Any, call: Any, **kwargs: Any) -> NodeOutput:
        _watch_commits(worker)
        _inject_faults(call, worker)
        output: NodeOutput = function(batch, config, worker=worker, call=call, **kwargs)
        return output

    return run


def _names(whole: TaskGraph) -> dict[str, str]:
    return {node.node_id: node.executable_ref.partition(":")[2] for node in whole.nodes.values()}


NODES, LANGUAGE_NODES, CONTROL_NODES = _names(embodied_grpo()), _names(language_grpo()), _names(ppo_control())
globals().update({name: _faulty(name) for each in (NODES, LANGUAGE_NODES, CONTROL_NODES) for name in each.values()})
