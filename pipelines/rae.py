"""Role-conditioned advantage estimation: an agent is compared with its own running average (arXiv:2506.24119)."""

from embodyflow.graph.building_blocks import agent_baseline, policy_gradient, reward
from pipelines import TaskGraph


def rae() -> TaskGraph:
    """Return the graph.

    rollout → reward → agent_baseline → advantage → old_log_prob → ref_log_prob → train_actor

    Baselines average the outcomes of all episodes, so no node drops groups.
    """
    return policy_gradient("rae", "Self-play with running baselines", reward, agent_baseline)
