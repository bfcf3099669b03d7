"""Off-policy training on transitions from a replay buffer: SAC (arXiv:1812.05905) and its relatives."""

from pipelines import Pipeline, TaskGraph

COLUMNS = (
    *("uid", "policy_version", "seed", "num_steps"),
    *("state", "action_tokens", "rewards", "final_state", "terminated", "truncated"),
)
"""Columns of a row that is one step."""

EPISODE_COLUMNS = (
    *("uid", "group_id", "policy_version", "seed", "env_task_id", "goal", "instruction_ids", "state", "final_state"),
    *("action_tokens", "actions", "log_probs", "loss_mask", "num_steps", "episode_return"),
    *("success", "terminated", "truncated"),
)
"""Columns of a row that is an episode of a policy that reads states."""


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


def embodied_sac() -> TaskGraph:
    """Return the graph for episodes, whose decisions are the transitions: rollout → store → train."""
    return (
        Pipeline("embodied_sac", "Off-policy training on the decisions of episodes")
        .add_node("rollout", func="tasks:generate", writes=EPISODE_COLUMNS)
        .add_node("store", func="tasks:store_episodes", deps=["rollout"])
        .add_node("train", func="tasks:train_off_policy", deps=["store"])
        .build()
    )


def offline() -> TaskGraph:
    """Return the graph of offline training: updates from the demonstrations, and no step of an environment."""
    return (
        Pipeline("offline", "Off-policy training on a data set alone")
        .add_node("train", func="tasks:train_offline")
        .build()
    )
