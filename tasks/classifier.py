"""The node that rewards episodes by a success classifier, where the environment tells the success of a few."""

import logging
from typing import Any

import numpy as np
import torch

from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.data.batches import join_rows, to_batch, to_columns
from embodyflow.data.metrics import Metric, mean
from embodyflow.errors import ConfigError, RewardError
from embodyflow.nodes.context import NodeContext
from embodyflow.nodes.declarations import node
from embodyflow.nodes.engines import Reducer
from embodyflow.record.episodes.labelled_episodes import LabelledEpisodes
from embodyflow.rewards.progress.episode_embeddings import build_embedding
from embodyflow.rewards.progress.success_classifier import (
    area_under_roc,
    draw_labelled,
    has_one_outcome,
    rewards_of,
    train_classifier,
)
from embodyflow.types import Batch, NodeOutput
from tasks.progress import gathered

logger = logging.getLogger(__name__)

_UNTRAINED = (
    "the classifier cannot tell episodes apart and all of them get that reward; label more with "
    "classifier.labelled_share, or give the warm start demonstrations"
)


@node(reads=("uid", "env_task_id", "success", "loss_mask"), writes=("scores",))
def classify_success(
    batch: Batch, config: Any = None, *, worker: Reducer, call: NodeContext, **kwargs: Any
) -> NodeOutput:
    """Score episodes by a classifier of success; pass on ``uid`` and the scores.

    In each iteration a share of the episodes is drawn whose success is revealed. The classifier is trained afresh on
    these, on those of the iterations before, and on the demonstrations of the warm start, which are successes. The
    labelled episodes of the iterations before come from a file of the run, of which each iteration writes its own, so a
    repeated iteration finds the same ones. Every rank trains the same classifier on the labelled episodes of all ranks.

    Where all known episodes have one outcome, a classifier would learn that outcome from noise. Every episode then gets
    the reward of that outcome, so no advantage comes from it, with a warning and the metric ``classifier/one_outcome``.

    The success of the other episodes enters metrics alone.

    Raises:
        ConfigError: The run has no ``classifier`` settings, or its warm start has no demonstrations.
        RewardError: An embedding is not finite.
        DamageError: The labelled episodes of the iterations before are missing or damaged.
    """
    run = worker.config
    if not isinstance(run, EmbodiedConfig) or run.classifier is None:
        raise ConfigError("classifier=null: tasks:classify_success needs to know how success is classified")
    draws = (call.seed, call.iteration, call.node_id)
    table = gathered(torch.cat([batch["success"].double().unsqueeze(1), _inputs(batch, run)], 1), call, worker)
    success, inputs = table[:, 0].bool().numpy(), table[:, 1:]
    labelled = draw_labelled(len(table), run.classifier.labelled_share, draws)
    drawn = _examples(inputs[labelled], torch.from_numpy(success[labelled]))
    known = join_rows([*_known_before(run, call, inputs.shape[1], keeps=worker.rank == 0), drawn])
    if worker.rank == 0:
        _files(call).keep(call.iteration, to_columns(drawn))
    is_one = has_one_outcome(known["success"])
    if is_one and worker.rank == 0:
        outcome = "success" if known["success"][0] else "failure"
        logger.warning("iteration %d: every label so far is a %s, so %s", call.iteration, outcome, _UNTRAINED)
    classifier, loss = train_classifier(known["inputs"], known["success"], run.classifier, draws)
    probabilities = classifier.probabilities(inputs).numpy()
    if is_one:
        probabilities = np.full(len(inputs), float(known["success"][0]))
    rewards = rewards_of(probabilities, success[labelled], labelled, run.classifier.threshold)
    scores = torch.from_numpy(rewards[call.positions].astype(np.float32))
    metrics = {
        "classifier/loss": mean(loss),
        "classifier/labelled_share": mean(float(labelled.mean())),
        "classifier/num_examples": mean(len(known)),
        "classifier/one_outcome": mean(float(is_one)),
    }
    scored = Batch({"uid": batch["uid"], "scores": scores}, batch_size=[len(batch)])
    return NodeOutput(scored, metrics | _quality(probabilities[~labelled], success[~labelled]))


def _inputs(batch: Batch, run: EmbodiedConfig) -> torch.Tensor:
    """Return the classifier's inputs, float64 [N, D]: each episode's embedding and its task as a one-hot vector.

    Raises:
        RewardError: An embedding is not finite.
    """
    assert run.classifier is not None
    embedded = build_embedding(run.classifier.embedding, run.cluster.device)(batch).double()
    if not (finite := embedded.isfinite().all(1)).all():
        raise RewardError(int(batch["uid"][~finite][0]), "its embedding is not finite")
    tasks = torch.nn.functional.one_hot(batch["env_task_id"].long(), len(run.env.tasks)).double()
    return torch.cat([embedded, tasks], 1)


def _known_before(run: EmbodiedConfig, call: NodeContext, size: int, *, keeps: bool) -> list[Batch]:
    """Return the labelled episodes before this iteration: demonstrations, and the draws of the iterations before.

    Args:
        run: Configuration of the run.
        call: Call of the node.
        size: Number of the classifier's inputs.
        keeps: Whether this rank writes the demonstrations to the run's folder, for the iterations to come.

    Raises:
        ConfigError: There are no such demonstrations.
        DamageError: The file of an iteration before is missing or damaged.
    """
    from embodyflow.rollouts.embodied.demonstrators import all_demonstrations, as_episodes  # imports simulators

    if call.iteration > 1:
        return [to_batch(table) for table in _files(call).before(call.iteration)]
    inputs = torch.zeros(0, size, dtype=torch.float64)
    if run.warm_start is not None:
        inputs = _inputs(to_batch(as_episodes(all_demonstrations(run))), run)
    demonstrated = _examples(inputs, torch.ones(len(inputs), dtype=torch.bool))
    if keeps:
        _files(call).keep(0, to_columns(demonstrated))
    return [demonstrated]


def _files(call: NodeContext) -> LabelledEpisodes:
    assert call.run_folder is not None, "nodes of a graph know the run's folder"
    return LabelledEpisodes(call.run_folder)


def _examples(inputs: torch.Tensor, success: torch.Tensor) -> Batch:
    return Batch({"inputs": inputs, "success": success}, batch_size=[len(inputs)])


def _quality(probabilities: np.ndarray, success: np.ndarray) -> dict[str, Metric]:
    """Return how well the classifier does on episodes that it was not trained on, where that is defined."""
    if not len(success):
        return {}
    metrics = {"classifier/accuracy": mean(float(((probabilities >= 0.5) == success).mean()))}
    if (area := area_under_roc(probabilities, success)) is not None:
        metrics["classifier/auroc"] = mean(area)
    return metrics
