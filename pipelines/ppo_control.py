"""Proximal Policy Optimization of control tasks: steps instead of episodes (arXiv:1707.06347)."""

from pipelines.builder import Pipeline
from pipelines.graph import TaskGraph
from pipelines.node import NodeRole, NodeType
from pipelines.policy_update import add_policy_update


def ppo_control() -> TaskGraph:
    """Return the graph.

    rollout → value → bootstrap → advantage → decisions → old_log_prob → ref_log_prob → train_actor → train_critic
    """
    train = NodeType.MODEL_TRAIN
    pipeline = Pipeline("ppo_control", "PPO with a critic, for continuous control").add_node(
        "rollout", func="tasks:collect_steps", node_type=NodeType.MODEL_INFERENCE, node_role=NodeRole.ROLLOUT
    )
    for node_id, func, parent in (("value", "compute_value", "rollout"), ("bootstrap", "bootstrap_value", "value")):
        pipeline.add_node(
            node_id,
            func=f"tasks:{func}",
            deps=[parent],
            node_type=train,
            node_role=NodeRole.CRITIC,
            only_forward_compute=True,
        )
    pipeline.add_node("advantage", func="tasks:compute_advantage", deps=["bootstrap"], node_role=NodeRole.ADVANTAGE)
    pipeline.add_node("decisions", func="tasks:split_decisions", deps=["advantage"])
    return (
        add_policy_update(pipeline, after="decisions")
        .add_node(
            "train_critic",
            func="tasks:train_critic",
            deps=["train_actor"],
            node_type=train,
            node_role=NodeRole.CRITIC,
        )
        .build()
    )
