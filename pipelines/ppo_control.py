"""Proximal Policy Optimization of control tasks: steps instead of episodes (arXiv:1707.06347)."""

from embodyflow.graph.builder import Pipeline
from embodyflow.graph.graph import TaskGraph
from embodyflow.graph.node import NodeRole, NodeType
from embodyflow.graph.policy_update import add_old_log_prob


def ppo_control() -> TaskGraph:
    """Return the graph: rollout → value → advantage → decisions → old_log_prob → train_actor_critic.

    Policy and critic are trained in the same steps. There is no reference policy: what begins from nothing has nothing
    to stay near.
    """
    train = NodeType.MODEL_TRAIN
    pipeline = (
        Pipeline("ppo_control", "PPO with a critic, for continuous control")
        .add_node("rollout", func="tasks:collect_steps", node_type=NodeType.MODEL_INFERENCE, node_role=NodeRole.ROLLOUT)
        .add_node(
            "value",
            func="tasks:value_steps",
            deps=["rollout"],
            node_type=train,
            node_role=NodeRole.CRITIC,
            only_forward_compute=True,
        )
        .add_node("advantage", func="tasks:compute_advantage", deps=["value"], node_role=NodeRole.ADVANTAGE)
        .add_node("decisions", func="tasks:split_decisions", deps=["advantage"])
    )
    return (
        add_old_log_prob(pipeline, after="decisions")
        .add_node(
            "train_actor_critic",
            func="tasks:train_actor_critic",
            deps=["old_log_prob"],
            node_type=train,
            node_role=NodeRole.ACTOR,
        )
        .build()
    )
