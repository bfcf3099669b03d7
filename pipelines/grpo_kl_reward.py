"""GRPO, or any estimator without a critic, with the KL to the reference policy in the rewards (arXiv:2501.03262)."""

from embodyflow.graph.builder import Pipeline
from embodyflow.graph.graph import TaskGraph
from embodyflow.graph.node import NodeRole, NodeType
from embodyflow.graph.policy_update import add_kl_penalty, add_train_actor


def grpo_kl_reward() -> TaskGraph:
    """Return the graph, for ``algorithm.kl.placement=reward``.

    rollout → reward → sampling → old_log_prob → ref_log_prob → kl_penalty → advantage → train_actor

    A group of one outcome differs in its KL alone, which ``grpo`` would blow up to the size of any other difference:
    ``sampling`` drops it. With an estimator that compares rows of all groups, ``filter.drop_uniform=false`` keeps it.
    Advantages are the trainer's to compute, whose ranks can add up: ``reinforce_plus_plus`` whitens over all of them.
    """
    pipeline = (
        Pipeline("grpo_kl_reward", "GRPO with the KL in the rewards")
        .add_node("rollout", func="tasks:generate", node_type=NodeType.MODEL_INFERENCE, node_role=NodeRole.ROLLOUT)
        .add_node("reward", func="tasks:compute_reward", deps=["rollout"], node_role=NodeRole.REWARD)
        .add_node("sampling", func="tasks:embodied_sampling", deps=["reward"], node_role=NodeRole.DYNAMIC_SAMPLING)
    )
    return add_train_actor(add_kl_penalty(pipeline, after="sampling"), after="advantage").build()
