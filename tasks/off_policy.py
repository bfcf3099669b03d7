"""Nodes of off-policy training: the replay buffer, and the updates drawn from it."""

from typing import Any

from embodyflow.nodes.context import NodeContext
from embodyflow.nodes.declarations import node
from embodyflow.nodes.engines import OffPolicyEngine
from embodyflow.types import Batch, NodeOutput

TRANSITION_COLUMNS = ("uid", "state", "action_tokens", "rewards", "final_state", "terminated", "truncated")
"""Columns of rows that are one step each."""


@node(reads=TRANSITION_COLUMNS, writes=())
def store_transitions(
    batch: Batch, config: Any = None, *, worker: OffPolicyEngine, call: NodeContext, **kwargs: Any
) -> NodeOutput:
    """Append the iteration's transitions to the replay buffer; pass no rows on."""
    return NodeOutput(None, worker.store(batch, call.iteration))


@node(
    reads=(
        *("uid", "state", "action_tokens", "loss_mask", "num_steps", "success"),
        *("terminated", "truncated", "final_state"),
    ),
    writes=(),
)
def store_episodes(
    batch: Batch, config: Any = None, *, worker: OffPolicyEngine, call: NodeContext, **kwargs: Any
) -> NodeOutput:
    """Append the decisions of the iteration's episodes to the replay buffer; pass no rows on."""
    return NodeOutput(None, worker.store(batch, call.iteration))


@node(reads=(), writes=())
def train_off_policy(
    batch: Batch | None, config: Any = None, *, worker: OffPolicyEngine, call: NodeContext, **kwargs: Any
) -> NodeOutput:
    """Take the updates that are due, ``off_policy.updates_per_transition`` for each new transition."""
    return NodeOutput(None, worker.train((call.seed, call.iteration, call.node_id), call.iteration))


@node(reads=(), writes=())
def train_offline(
    batch: Batch | None, config: Any = None, *, worker: OffPolicyEngine, call: NodeContext, **kwargs: Any
) -> NodeOutput:
    """Take ``off_policy.updates_per_iteration`` updates from the demonstrations."""
    return NodeOutput(None, worker.train_offline((call.seed, call.iteration, call.node_id), call.iteration))
