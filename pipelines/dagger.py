"""DAgger: an expert labels the states that the policy visits, and the policy imitates all labels (arXiv:1011.0686)."""

from pipelines import Pipeline, TaskGraph


def dagger() -> TaskGraph:
    """Return the graph: rollout → store → train."""
    return (
        Pipeline("dagger", "Imitation of an expert in the states that the policy visits")
        .add_node("rollout", func="tasks:label_episodes")
        .add_node("store", func="tasks:store_labels", deps=["rollout"])
        .add_node("train", func="tasks:train_on_labels", deps=["store"])
        .build()
    )
