"""Building blocks of graphs that train a policy; each appends nodes to a pipeline."""

from collections.abc import Callable
from typing import Literal

from embodyflow.graph.builder import Pipeline
from embodyflow.graph.graph import TaskGraph
from embodyflow.graph.node import NodeRole, NodeType

Step = Callable[[Pipeline, str], str]
"""Function that appends one node to the given node and returns the new node's id."""


def add_rollout(pipeline: Pipeline) -> str:
    """Add the root ``rollout``, which generates the rows of an iteration."""
    pipeline.add_node("rollout", "tasks:generate", node_type=NodeType.MODEL_INFERENCE, node_role=NodeRole.ROLLOUT)
    return "rollout"


def reward(pipeline: Pipeline, after: str) -> str:
    """Append ``reward``."""
    pipeline.add_node("reward", "tasks:compute_reward", [after], node_role=NodeRole.REWARD)
    return "reward"


def reward_by_scores(pipeline: Pipeline, node_id: str, func: str, after: str) -> str:
    """Append a node that scores episodes on the trainer group, whose ranks can compare all of them, and ``reward``.

    ``reward`` and the nodes after it run where the episodes are, with groups whole.

    Args:
        pipeline: Pipeline.
        node_id: Id of the node that scores.
        func: Function of that node; it passes on ``uid`` and ``scores``.
        after: Node that plays the episodes.
    """
    inference = NodeType.MODEL_INFERENCE
    pipeline.add_node(node_id, func, [after], node_type=inference, node_role=NodeRole.REWARD)
    pipeline.add_node("reward", "tasks:compute_reward", [after, node_id], node_role=NodeRole.REWARD)
    return "reward"


def greedy_baseline(pipeline: Pipeline, after: str) -> str:
    """Append ``baseline``, which plays a greedy row of each group and keeps its reward."""
    pipeline.add_node(
        "baseline", "tasks:compute_baseline", [after], node_type=NodeType.MODEL_INFERENCE, node_role=NodeRole.ROLLOUT
    )
    return "baseline"


def agent_baseline(pipeline: Pipeline, after: str) -> str:
    """Append ``agent_baseline``, which writes the running baselines of agents; the trainer keeps them."""
    _add_forward_pass(pipeline, "agent_baseline", NodeRole.ACTOR, after)
    return "agent_baseline"


def filter_groups(pipeline: Pipeline, after: str) -> str:
    """Append ``sampling``, which drops groups by their outcomes."""
    pipeline.add_node("sampling", "tasks:filter_groups", [after], node_role=NodeRole.DYNAMIC_SAMPLING)
    return "sampling"


def resample_groups(pipeline: Pipeline, after: str) -> str:
    """Append ``dynamic_sampling``, which drops groups by their outcomes and generates replacements."""
    pipeline.add_node(
        "dynamic_sampling",
        "tasks:dynamic_sampling",
        [after],
        node_type=NodeType.MODEL_INFERENCE,
        node_role=NodeRole.ROLLOUT,
    )
    return "dynamic_sampling"


def policy_gradient(name: str, description: str, *steps: Step, kl: Literal["loss", "rewards"] = "loss") -> TaskGraph:
    """Return a graph without a critic: rollout, the steps, advantages, log-probs, training.

    Args:
        name: Name of the pipeline.
        description: Text for readers.
        steps: Nodes between rollout and advantages, in this order.
        kl: Place of the KL term. With ``"rewards"`` advantages follow it on the trainer group, whose ranks can sum
            over all rows.
    """
    pipeline = Pipeline(name, description)
    last = add_rollout(pipeline)
    for step in steps:
        last = step(pipeline, last)
    if kl == "rewards":
        return add_train_actor(add_kl_penalty(pipeline, after=last), after="advantage").build()
    pipeline.add_node("advantage", "tasks:compute_advantage", [last], node_role=NodeRole.ADVANTAGE)
    return add_policy_update(pipeline, after="advantage").build()


def actor_critic(name: str, description: str, *, kl: Literal["loss", "rewards"] = "loss") -> TaskGraph:
    """Return a graph with a critic: rollout, reward, values, advantages, log-probs, training of policy and critic.

    Args:
        name: Name of the pipeline.
        description: Text for readers.
        kl: Place of the KL term.
    """
    pipeline = _with_values(name, description)
    if kl == "rewards":
        add_train_actor(add_kl_penalty(pipeline, after="value"), after="advantage")
    else:
        pipeline.add_node("advantage", "tasks:compute_advantage", ["value"], node_role=NodeRole.ADVANTAGE)
        add_policy_update(pipeline, after="advantage")
    return add_train_critic(pipeline).build()


def joint_actor_critic(name: str, description: str) -> TaskGraph:
    """Return a graph like :func:`actor_critic`, but policy and critic take the same optimizer steps.

    Args:
        name: Name of the pipeline.
        description: Text for readers.
    """
    pipeline = _with_values(name, description)
    pipeline.add_node("advantage", "tasks:compute_advantage", ["value"], node_role=NodeRole.ADVANTAGE)
    add_log_probs(pipeline, after="advantage")
    return _add_training(pipeline, "train_actor_critic", NodeRole.ACTOR, after="ref_log_prob").build()


def _with_values(name: str, description: str) -> Pipeline:
    """Return a pipeline with rollout, reward and values."""
    pipeline = Pipeline(name, description)
    return add_value(pipeline, after=reward(pipeline, add_rollout(pipeline)))


def add_old_log_prob(pipeline: Pipeline, after: str) -> Pipeline:
    """Append ``old_log_prob`` to the node ``after``."""
    return _add_forward_pass(pipeline, "old_log_prob", NodeRole.ACTOR, after)


def add_value(pipeline: Pipeline, after: str) -> Pipeline:
    """Append ``value``, the critic's forward pass, to the node ``after``."""
    return _add_forward_pass(pipeline, "value", NodeRole.CRITIC, after)


def add_log_probs(pipeline: Pipeline, after: str) -> Pipeline:
    """Append ``old_log_prob → ref_log_prob`` to the node ``after``."""
    add_old_log_prob(pipeline, after)
    return _add_forward_pass(pipeline, "ref_log_prob", NodeRole.REFERENCE, after="old_log_prob")


def add_kl_penalty(pipeline: Pipeline, after: str) -> Pipeline:
    """Append ``old_log_prob → ref_log_prob → kl_penalty → advantage`` to the node ``after``."""
    return (
        add_log_probs(pipeline, after)
        .add_node("kl_penalty", func="tasks:compute_kl_penalty", deps=["ref_log_prob"], node_role=NodeRole.REWARD)
        .add_node("advantage", func="tasks:compute_advantage", deps=["kl_penalty"], node_role=NodeRole.ADVANTAGE)
    )


def add_train_actor(pipeline: Pipeline, after: str) -> Pipeline:
    """Append ``train_actor`` to the node ``after``, whose rows have advantages and log-probs."""
    return _add_training(pipeline, "train_actor", NodeRole.ACTOR, after)


def add_policy_update(pipeline: Pipeline, after: str) -> Pipeline:
    """Append ``old_log_prob → ref_log_prob → train_actor`` to the node ``after``, whose rows have advantages."""
    return add_train_actor(add_log_probs(pipeline, after), after="ref_log_prob")


def add_train_critic(pipeline: Pipeline) -> Pipeline:
    """Append ``train_critic`` to ``train_actor``."""
    return _add_training(pipeline, "train_critic", NodeRole.CRITIC, after="train_actor")


def _add_forward_pass(pipeline: Pipeline, node_id: str, role: NodeRole, after: str) -> Pipeline:
    """Append a node that uses the trainer's weights; its function is ``tasks:compute_<node_id>``."""
    func, train = f"tasks:compute_{node_id}", NodeType.MODEL_TRAIN
    return pipeline.add_node(node_id, func, [after], node_type=train, node_role=role, only_forward_compute=True)


def _add_training(pipeline: Pipeline, node_id: str, role: NodeRole, after: str) -> Pipeline:
    """Append a node that changes the trainer's weights; its function is ``tasks:<node_id>``."""
    return pipeline.add_node(node_id, f"tasks:{node_id}", [after], node_type=NodeType.MODEL_TRAIN, node_role=role)
