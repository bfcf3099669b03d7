"""Graphs with a planted collapse, which :mod:`benchmarks.health` runs.

A collapse begins in iteration ``BEGINS`` and lasts as long as the run has its first learning rate. So a run that rolls
back and changes the rate recovers, as one does whose rate was too high.
"""

import functools
import time
from collections.abc import Callable
from typing import Any

import torch

import tasks
from embodyflow.types import Batch, NodeOutput
from pipelines import TaskGraph
from pipelines.grpo import embodied_grpo, language_grpo

BEGINS = 8
"""First iteration that a collapse spoils. Detectors have seen enough healthy ones by then."""

FIRST_RATES = {"embodied": 1e-3, "language": 1e-3}
"""Learning rates of the jobs, which the benchmark sets."""

SECONDS = 20.0
"""Delay of a slow node."""


def not_a_number(batch: Batch) -> None:
    """Make an advantage NaN."""
    batch["advantages"][:1] = torch.nan


def huge(batch: Batch) -> None:
    """Multiply the advantages by 10,000, as a reward in the wrong unit would."""
    batch["advantages"] *= 1e4


def certain(batch: Batch) -> None:
    """Raise the probability of whatever was sampled, so the policy loses its entropy."""
    batch["advantages"] = torch.full_like(batch["advantages"], 5.0)


def worthless(batch: Batch) -> None:
    """Let no row succeed, as with a broken reward or a dead environment."""
    batch["success"] = torch.zeros_like(batch["success"])
    if "scores" in set(batch.keys()):
        batch["scores"] = torch.zeros_like(batch["scores"])


def slow(batch: Batch) -> None:
    """Take long."""
    time.sleep(SECONDS)


AFTER_ADVANTAGE: dict[str, Callable[[Batch], None]] = {
    "nan": not_a_number,
    "huge_reward": huge,
    "no_entropy": certain,
    "slow": slow,
}
AFTER_ROLLOUT: dict[str, Callable[[Batch], None]] = {"no_success": worthless}


def _planted(function: Callable[..., NodeOutput], spoil: Callable[[Batch], None]) -> Callable[..., NodeOutput]:
    @functools.wraps(function)
    def run(batch: Batch, config: Any = None, *, worker: Any, call: Any, **kwargs: Any) -> NodeOutput:
        output = function(batch, config, worker=worker, call=call, **kwargs)
        rate, first = worker.config.trainer.learning_rate, FIRST_RATES[worker.config.job]
        if call.iteration >= BEGINS and rate == first and output.batch is not None:
            spoil(output.batch)
        return output

    return run


def _graph(job: str, collapse: str) -> TaskGraph:
    whole = {"embodied": embodied_grpo, "language": language_grpo}[job]()
    planted = TaskGraph(whole.graph_id, whole.description)
    name = "compute_advantage" if collapse in AFTER_ADVANTAGE else _judging(job)
    for node in whole.nodes.values():
        if node.executable_ref == f"tasks:{name}":
            node = node.model_copy(update={"executable_ref": f"{__name__}:{collapse}_{name}"})
        planted.add_node(node)
    return planted


def _judging(job: str) -> str:
    """Return the function of the node after which the rows' outcome is known."""
    return {"embodied": "generate", "language": "compute_reward"}[job]


for _name, _spoil in (AFTER_ADVANTAGE | AFTER_ROLLOUT).items():
    for _job in FIRST_RATES:
        globals()[f"{_job}_{_name}"] = functools.partial(_graph, _job, _name)
    _functions = ("compute_advantage",) if _name in AFTER_ADVANTAGE else ("generate", "compute_reward")
    for _function in _functions:
        globals()[f"{_name}_{_function}"] = _planted(getattr(tasks, _function), _spoil)
