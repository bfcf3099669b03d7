"""Self-Referential Policy Optimization: failures are rewarded for their progress (arXiv:2511.15605)."""

from pipelines.embodied_grpo import embodied_grpo
from pipelines.graph import TaskGraph


def embodied_srpo() -> TaskGraph:
    """Return the graph of :func:`~pipelines.embodied_grpo.embodied_grpo`: SRPO differs in what its reward says."""
    return TaskGraph.of(embodied_grpo().nodes.values(), "embodied_srpo", "SRPO on episodes")
