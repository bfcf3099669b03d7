"""Soft actor-critic for continuous control, on transitions from a replay buffer (arXiv:1812.05905)."""

from pipelines import Pipeline, TaskGraph

COLUMNS = (
    *("uid", "policy_version", "seed", "num_steps"),
    *("state", "action_tokens", "rewards", "final_state", "terminated", "truncated"),
)
"""Columns of a row that is one step."""


def sac() -> TaskGraph:
    """Return the graph: rollout → store → train.

    The updates of policy, critics, target critics and temperature take turns batch by batch, so one node has them all.
    """
    return (
        Pipeline("sac", "Soft actor-critic, for continuous control")
        .add_node("rollout", func="tasks:collect_steps", writes=COLUMNS)
        .add_node("store", func="tasks:store_transitions", deps=["rollout"])
        .add_node("train", func="tasks:train_off_policy", deps=["store"])
        .build()
    )
