"""Runs of custom graphs from outside this repository."""

from pathlib import Path

import pytest
from small_runs import SMALL_CONTROL, TWO_WORKERS, Runs, training_records

pytestmark = pytest.mark.integration

YAML = """
dag_id: grpo_in_yaml
description: GRPO on episodes, without a line of Python
nodes:
  - {node_id: rollout, node_type: MODEL_INFERENCE, node_role: ROLLOUT, executable_ref: "tasks:generate"}
  - {node_id: sampling, node_type: COMPUTE, dependencies: [rollout], executable_ref: "tasks:embodied_sampling"}
  - {node_id: reward, node_type: COMPUTE, node_role: REWARD, dependencies: [sampling],
     executable_ref: "tasks:compute_reward"}
  - {node_id: advantage, node_type: COMPUTE, node_role: ADVANTAGE, dependencies: [reward],
     executable_ref: "tasks:compute_advantage"}
  - {node_id: old_log_prob, node_type: MODEL_TRAIN, node_role: ACTOR, dependencies: [advantage],
     only_forward_compute: true, executable_ref: "tasks:compute_old_log_prob"}
  - {node_id: ref_log_prob, node_type: MODEL_TRAIN, node_role: REFERENCE, dependencies: [old_log_prob],
     only_forward_compute: true, executable_ref: "tasks:compute_ref_log_prob"}
  - {node_id: train_actor, node_type: MODEL_TRAIN, node_role: ACTOR, dependencies: [ref_log_prob],
     executable_ref: "tasks:train_actor"}
"""

# Several roots, a diamond whose sides meet on another group, two leaves, and a custom loss.
MODULE = """
import time
from embodyflow.data.metrics import last, total
from embodyflow.types import NodeOutput
from pipelines import NodeRole, NodeType, Pipeline


def clipped_nowhere(inputs, config):
    return -inputs.advantages * (inputs.log_probs - inputs.old_log_probs).exp(), {}


def tick(batch, config=None, **kwargs):
    started = time.time()
    time.sleep(1.0)
    side = config["side"]
    return NodeOutput(None, {f"perf/{side}_started": last(started), f"perf/{side}_ended": last(time.time())})


def length(batch, config=None, **kwargs):
    batch["length"] = batch["num_steps"].float()
    return NodeOutput(batch)


def census(batch, config=None, **kwargs):
    rows = len(batch) if batch is not None else 0
    complete = {"length", "rewards", "advantages", "returns"} <= set(batch.keys())
    return NodeOutput(None, {"census/rows": total(rows), "census/complete": last(float(complete))})


def graph():
    here, train = "outside_pipeline", NodeType.MODEL_TRAIN
    return (
        Pipeline("outside", "roots: rollout, left, right; leaves: train_actor, census")
        .add_node("rollout", func="tasks:generate", deps=[], node_type=NodeType.MODEL_INFERENCE,
                  node_role=NodeRole.ROLLOUT)
        .add_node("left", func=tick, deps=[], config={"side": "left"})
        .add_node("right", func=f"{here}:tick", deps=[], config={"side": "right"})
        .add_node("reward", func="tasks:compute_reward", deps=["rollout"], node_role=NodeRole.REWARD)
        .add_node("length", func=length, deps=["rollout"])
        .add_node("advantage", func="tasks:compute_advantage", deps=["reward", "length", "left", "right"])
        .add_node("old_log_prob", func="tasks:compute_old_log_prob", deps=["advantage"], node_type=train,
                  node_role=NodeRole.ACTOR, only_forward_compute=True)
        .add_node("ref_log_prob", func="tasks:compute_ref_log_prob", deps=["old_log_prob"], node_type=train,
                  node_role=NodeRole.REFERENCE, only_forward_compute=True)
        .add_node("train_actor", func="tasks:train_actor", deps=["ref_log_prob"], node_type=train,
                  node_role=NodeRole.ACTOR)
        .add_node("census", func=census, deps=["advantage"])
        .build()
    )
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, prefect_api: str, ray_env: dict[str, str]) -> Runs:
    return Runs(tmp_path_factory.mktemp("pipelines")).served_by(prefect_api, **ray_env)


@pytest.mark.slow
def test_grpo_in_yaml_gives_the_same_weights_as_in_python(runs: Runs, tmp_path: Path) -> None:
    """The Python graph has a task run per node and the YAML graph one per iteration, which does not matter either."""
    (tmp_path / "grpo.yaml").write_text(YAML)
    runs.run("python", "iterations=3", "seed=7")
    runs.run("yaml", "iterations=3", "seed=7", f"pipeline.yaml={tmp_path}/grpo.yaml", "pipeline.task_runs=iteration")
    assert runs.summary("yaml")["weights_digest"] == runs.summary("python")["weights_digest"]
    digests = [record["weights_digest"] for record in runs.metrics("python") if "weights_digest" in record]
    assert len(set(digests)) > 1, "nothing was trained"


def test_nodes_in_one_call_write_the_rows_and_weights_of_calls_of_their_own(runs: Runs) -> None:
    """With a task run per iteration, the trainer's nodes after the first run in the first one's call."""
    for task_runs in ("node", "iteration"):
        words = ("iterations=3", "seed=7", f"pipeline.task_runs={task_runs}", f"run_root={runs.root}")
        runs.end(runs.start(*SMALL_CONTROL, *words, f"run_id={task_runs}", flow="ppo"))
    runs.assert_same_training("iteration", "node")
    digests = training_records(runs.metrics("iteration"))[0]["digests"]
    assert {"value", "advantage", "train_actor_critic"} <= digests.keys()


def test_a_custom_graph_with_a_custom_loss_runs(runs: Runs, tmp_path: Path, prefect_api: str) -> None:
    (tmp_path / "outside_pipeline.py").write_text(MODULE)
    # Workers of the shared cluster would not find this module.
    mine = Runs(tmp_path).served_by(prefect_api, PYTHONPATH=str(tmp_path))
    words = ("pipeline.custom_fn=outside_pipeline:graph", "algorithm.loss=outside_pipeline:clipped_nowhere")
    mine.run("outside", "iterations=1", "seed=5", TWO_WORKERS, *words)
    [record] = [r for r in mine.records("outside") if "census/rows" in r]
    assert (record["census/rows"], record["census/complete"]) == (16, 1.0)
    assert record["train/optimizer_steps"] > 0
    overlap = min(record["perf/left_ended"], record["perf/right_ended"]) - max(
        record["perf/left_started"], record["perf/right_started"]
    )
    assert overlap > 0.5, "the branches ran one after the other"
