"""PPO as RLHF has it: the KL to the reference policy is a part of each token's reward (arXiv:2203.02155)."""

from embodyflow.graph.builder import Pipeline
from embodyflow.graph.graph import TaskGraph
from embodyflow.graph.node import NodeRole, NodeType
from embodyflow.graph.policy_update import add_kl_penalty, add_train_actor, add_train_critic, add_value


def ppo_kl_reward() -> TaskGraph:
    """Return the graph, for ``algorithm.kl.placement=reward``.

    rollout → reward → value → old_log_prob → ref_log_prob → kl_penalty → advantage → train_actor → train_critic
    """
    pipeline = (
        Pipeline("ppo_kl_reward", "PPO with a critic and the KL in the rewards")
        .add_node("rollout", func="tasks:generate", node_type=NodeType.MODEL_INFERENCE, node_role=NodeRole.ROLLOUT)
        .add_node("reward", func="tasks:compute_reward", deps=["rollout"], node_role=NodeRole.REWARD)
    )
    add_kl_penalty(add_value(pipeline, after="reward"), after="value")
    return add_train_critic(add_train_actor(pipeline, after="advantage")).build()
