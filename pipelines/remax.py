"""ReMax: the reward of a greedy response is the baseline of its siblings (arXiv:2310.10505)."""

from embodyflow.graph.building_blocks import filter_groups, greedy_baseline, policy_gradient, reward
from pipelines import TaskGraph


def remax() -> TaskGraph:
    """Return the graph.

    rollout → baseline → reward → sampling → advantage → old_log_prob → ref_log_prob → train_actor

    A group with one outcome has advantages if its greedy row has another, so the recipe of ``remax`` sets
    ``filter.drop_uniform=false``.
    """
    return policy_gradient("remax", "ReMax", greedy_baseline, reward, filter_groups)
