"""Which groups are trained on."""

from typing import Any

import torch

from embodyflow.algorithms.filters import group_metrics, keep_mixed, keep_untruncated, keep_within
from embodyflow.data.metrics import mean, total
from embodyflow.node_fields import node
from embodyflow.types import Batch, NodeOutput


@node(reads=("success", "truncated", "group_id"), writes=())
def embodied_sampling(batch: Batch, config: Any = None, *, worker: Any, **kwargs: Any) -> NodeOutput:
    """Keep or drop whole groups by their outcomes, as ``filter`` says."""
    rules = worker.config.filter
    success, groups = batch["success"], batch["group_id"]
    keep = keep_within(success, groups, rules.min_success, rules.max_success)
    if rules.drop_uniform:
        keep &= keep_mixed(success, groups)
    if rules.drop_truncated:
        keep &= keep_untruncated(batch["truncated"], groups)
    metrics = {name: mean(float(s / n), float(n)) for name, (s, n) in group_metrics(success, groups).items()}
    metrics["groups/num_kept_rows"] = total(int(torch.sum(keep)))
    return NodeOutput(batch[keep], metrics)
