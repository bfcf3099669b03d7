"""The nodes of the default pipelines, at which a plan has a part of the run die.

The workers of such a run import this module. The plan is a JSON file, named by ``EMBODYFLOW_FAULTS``: a list of faults,
each of which happens once in a run::

    {"iteration": 2, "node": "train_actor", "part": "trainer/0", "signal": "SIGKILL", "delay": 0.02}

``part`` is a name in the run's ``processes.json``, with ``"below": true`` a process that this one has started; or
``exception``: the node's own function raises as a lost worker would; or ``bug``: it raises as a mistake in it would. A
process that is not the run's own is named by its ``pid``. ``delay`` is in seconds after the node began; without it the
part is gone before the node begins. Beside the graph's nodes there is ``commit``, which begins when the trainer is
about to write a checkpoint.
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
    """Return the default graph over the nodes of this module."""
    return _over_these(embodied_grpo())


def control_graph() -> TaskGraph:
    """Return the graph of control over the nodes of this module."""
    return _over_these(ppo_control())


def language_graph() -> TaskGraph:
    """Return the graph of language models over the nodes of this module."""
    return _over_these(language_grpo())


def _over_these(whole: TaskGraph) -> TaskGraph:
    faulty = TaskGraph(whole.graph_id, whole.description)
    for node in whole.nodes.values():
        name = node.executable_ref.partition(":")[2]
        faulty.add_node(node.model_copy(update={"executable_ref": f"faulty_nodes:{name}"}))
    return faulty


def _strike(call: Any, worker: Any) -> None:
    if getattr(worker, "rank", 0) != 0:
        return
    plan = Path(os.environ["EMBODYFLOW_FAULTS"])
    for index, fault in enumerate(json.loads(plan.read_text())):
        if (fault["iteration"], fault["node"]) == (call.iteration, call.node_id) and _first(plan, index):
            if fault["part"] == "exception":
                raise WorkerLostError("planted")
            if fault["part"] == "bug":
                raise ValueError("planted")
            if "delay" in fault:
                threading.Timer(fault["delay"], _kill, (fault, worker.config)).start()
            else:
                _kill(fault, worker.config)


def _first(plan: Path, index: int) -> bool:
    try:
        plan.with_name(f"{plan.name}.{index}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _kill(fault: dict[str, Any], config: Any) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):  # gone: of an earlier fault, or between one look and the next
        process = _victim(fault, config)
        process.send_signal(signal.Signals[fault["signal"]])
        if fault["signal"] == "SIGKILL" and process.pid != os.getpid():
            while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.001)


def _victim(fault: dict[str, Any], config: Any) -> psutil.Process:
    if "pid" in fault:
        return psutil.Process(fault["pid"])
    pids = json.loads((config.run_dir / "processes.json").read_text())
    [pid] = [pid for name, pid in pids.items() if name == fault["part"] or name.startswith(f"{fault['part']}/")][:1]
    process = psutil.Process(pid)
    return process.children()[0] if fault.get("below") else process


def _watch_commits(worker: Any) -> None:
    if hasattr(worker, "save") and "save" not in vars(worker):
        save = worker.save

        def save_or_die(folder: str, *arguments: Any) -> None:
            iteration = int(folder.rpartition("-")[2])
            _strike(SimpleNamespace(iteration=iteration, node_id=COMMIT), worker)
            save(folder, *arguments)

        worker.save = save_or_die


def _faulty(name: str) -> Any:
    function = getattr(tasks, name)

    @functools.wraps(function)
    def run(batch: Any, config: Any = None, *, worker: Any, call: Any, **kwargs: Any) -> NodeOutput:
        _watch_commits(worker)
        _strike(call, worker)
        output: NodeOutput = function(batch, config, worker=worker, call=call, **kwargs)
        return output

    return run


def _names(whole: TaskGraph) -> dict[str, str]:
    return {node.node_id: node.executable_ref.partition(":")[2] for node in whole.nodes.values()}


NODES, LANGUAGE_NODES, CONTROL_NODES = _names(embodied_grpo()), _names(language_grpo()), _names(ppo_control())
globals().update({name: _faulty(name) for each in (NODES, LANGUAGE_NODES, CONTROL_NODES) for name in each.values()})
