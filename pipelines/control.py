"""Proximal Policy Optimization for continuous control: steps instead of episodes (arXiv:1707.06347)."""

from embodyflow.graph.building_blocks import add_old_log_prob
from pipelines import NodeRole, NodeType, Pipeline, TaskGraph


def ppo_control() -> TaskGraph:
    """Return the graph: rollout → value → advantage → decisions → old_log_prob → train_actor_critic.

    Policy and critic train in the same steps. There is no reference policy: a policy that starts from random weights
    has nothing to stay near.
    """
    pipeline = (
        Pipeline("ppo_control", "PPO with a critic, for continuous control")
        .add_node("rollout", func="tasks:collect_steps", node_type=NodeType.MODEL_INFERENCE, node_role=NodeRole.ROLLOUT)
        .add_node(
            "value",
            func="tasks:value_steps",
            deps=["rollout"],
            node_type=NodeType.MODEL_TRAIN,
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
            node_type=NodeType.MODEL_TRAIN,
            node_role=NodeRole.ACTOR,
        )
        .build()
    )
