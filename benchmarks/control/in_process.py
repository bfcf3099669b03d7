"""A run in one process, without Ray and Prefect: one rollout worker and one trainer rank.

Warm start, node functions, graph and therefore results are those of ``python -m flows.<flow>`` with
``rollout.num_workers=1``. A run starts in two seconds and needs one core, so sweeps over many settings take minutes.

    python -m benchmarks.control.in_process /tmp/push-0.json experiment=push seed=0
"""

import json
import socket
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from embodyflow.config.composition.compose import compose_config
from embodyflow.data.batches import to_batch, to_columns
from embodyflow.data.metrics import as_metrics, merge_metrics, to_floats
from embodyflow.data.tables import join_columns
from embodyflow.graph import Node
from embodyflow.graph.node_groups import runs_on
from embodyflow.nodes.calling import bind
from embodyflow.references import resolve
from embodyflow.seeding import derive_seed
from embodyflow.training.fsdp_trainer import FSDPTrainer
from embodyflow.types import Batch, NodeOutput
from pipelines import load_pipeline
from tasks import measure_warm_start
from tasks.rewards import judge


class InProcessRun:
    """A run whose iterations are called one by one; :meth:`train` is for embodied and control runs.

    Args:
        words: Overrides of the configuration; ``rollout.num_workers=1`` is added.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.config: Any = compose_config(["run_id=in-process", *words, "rollout.num_workers=1"])
        self.rollout: Any = resolve(self.config.groups["rollout"].engine)(self.config, 0, 1)
        self.trainer = self.start_trainer()
        self.tasks = list(self.config.env.tasks) if hasattr(self.config, "env") else [self.config.experiment]
        self._version = -1
        self._graph = load_pipeline(**self.config.pipeline.source())

    def start_trainer(self) -> FSDPTrainer:
        """Return a trainer of the configuration as it is now, in a process group of its own."""
        trainer: FSDPTrainer = resolve(self.config.groups["trainer"].engine)(self.config, 0, 1)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        trainer.connect(f"127.0.0.1:{port}")
        return trainer

    def warm_start(self) -> None:
        """Fit the policy to demonstrations, if the configuration has a warm start, and publish it to the rollout."""
        if self.config.warm_start is not None:
            demos = to_batch(self.rollout.demonstrate())
            self.trainer.fit(demos[demos["uid"].argsort()], derive_seed(self.config.seed, 0, "fit"))
            self._fit_until(self.config.warm_start)
        self._publish(0)

    def _fit_until(self, config: Any) -> None:
        """Fit further until the policy has the quality that ends the warm start, if the configuration states one."""
        until, steps = config.until, config.steps
        while until is not None and steps < until.max_steps:
            self._publish(-1 - steps)
            call = self._call(0, "measure_warm_start", 0)
            measured = measure_warm_start(None, worker=self.rollout, call=call).metrics["sft/success_rate"]
            if measured.value >= until.success:
                return
            more = min(until.every, until.max_steps - steps)
            self.trainer.fit_further(more)
            steps += more

    def iterate(self, iteration: int) -> dict[str, float]:
        """Run the nodes of an iteration one after the other; return their metrics."""
        outputs: dict[str, Any] = {}
        metrics = []
        for node_id in self._graph.get_execution_order():
            node = self._graph.nodes[node_id]
            parents = [to_columns(outputs[each]) for each in node.dependencies if outputs[each] is not None]
            output = self.run_node(node, to_batch(join_columns(parents)) if parents else None, iteration)
            outputs[node_id] = output.batch
            metrics.append(as_metrics(output.metrics))
        self._publish(iteration)
        return to_floats(merge_metrics(metrics))

    def run_node(self, node: Node, rows: Batch | None, iteration: int) -> NodeOutput:
        """Run a node on its parents' rows."""
        worker = {"rollout": self.rollout, "trainer": self.trainer}[runs_on(self._graph, node.node_id)]
        call = self._call(iteration, node.node_id, 0 if rows is None else len(rows))
        function = resolve(node.executable_ref)
        arguments = bind(function, rows, node.config, worker=worker, call=call)
        output: NodeOutput = function(*arguments.args, **arguments.kwargs)
        return output

    def success(self, mode: str = "greedy") -> list[float]:
        """Return the success rate of each task on the goals of the evaluation split."""
        draws = None if mode == "greedy" else (self.config.seed, "evaluate")
        played = to_batch(self.rollout.play(self.rollout.evaluation_episodes(mode), "eval", draws))
        rows, _, _ = judge(played, "eval", self.rollout)
        task_ids = rows.get("env_task_id", torch.zeros(len(rows)))  # a job without environments has one task
        return [float(rows["success"][task_ids == task].double().mean()) for task in range(len(self.tasks))]

    def train(self) -> dict[str, Any]:
        """Train as the configuration says; return the figures that ``benchmarks/robots/learning.py`` reports."""
        self.warm_start()
        facts: dict[str, Any] = {"seed": self.config.seed, "tasks": self.tasks, "num_episodes": 0}
        facts |= {"curve": [], "mixed_fraction": [], **self._rates("before")}
        started = time.perf_counter()
        for iteration in range(1, self.config.iterations + 1):
            metrics = self.iterate(iteration)
            facts["curve"].append(metrics["rollout/success_rate"])
            facts["mixed_fraction"].append(metrics["groups/mixed_fraction"])
            facts["num_episodes"] += int(metrics["rollout/num_episodes"])
            seconds = time.perf_counter() - started
            print(iteration, facts["curve"][-1], facts["mixed_fraction"][-1], f"{seconds:.0f} s", flush=True)
        return facts | {"train_seconds": time.perf_counter() - started, **self._rates("after")}

    def _publish(self, version: int) -> None:
        """Load the trainer's weights into the rollout, with its probe as a run does."""
        self.rollout.update_weights(self.trainer.weights() | self.trainer.probe(), version)
        self._version = version

    def _rates(self, moment: str) -> dict[str, Any]:
        greedy, sampled = self.success(), self.success("sampled")
        return {
            f"success_rate_{moment}": statistics.mean(greedy),
            f"sampled_success_rate_{moment}": statistics.mean(sampled),
            f"success_rates_{moment}": dict(zip(self.tasks, greedy, strict=True)),
        }

    def _call(self, iteration: int, node_id: str, num_rows: int) -> SimpleNamespace:
        return SimpleNamespace(
            seed=self.config.seed,
            iteration=iteration,
            node_id=node_id,
            total_rows=num_rows,
            positions=np.arange(num_rows),
            policy_version=self._version,
            num_ranks=1,
            run_folder=None,
            journal=lambda rank, part=0: None,
            surplus=lambda rank: None,
            segment=None,
        )


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(InProcessRun(sys.argv[2:]).train(), indent=1) + "\n")
