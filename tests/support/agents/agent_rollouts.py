"""Rollouts of agents in this process."""

import torch

from embodyflow.agents.chat.transcript import Origin
from embodyflow.config.agents.agent import AgentJobConfig
from embodyflow.data.batches import Columns
from embodyflow.data.rows_file import Journal
from embodyflow.rollouts.agents.agent_rollout import AgentRollout
from embodyflow.training.language_trainer import LanguageTrainer
from embodyflow.types import Batch


def rollout_of(config: AgentJobConfig, trainer: LanguageTrainer) -> AgentRollout:
    """Build a rollout with the weights of a trainer."""
    rollout = AgentRollout(config, 0, 1)
    rollout.update_weights(trainer.weights() | trainer.probe(), version=3)
    return rollout


def play(rollout: AgentRollout, journal: Journal | None = None) -> Columns:
    """Play the training episodes of the first iteration."""
    return rollout.play(rollout.training_episodes(0, 1), "train", (0, 1, "rollout"), journal)


def assert_trained_as_sampled(rows: Batch, trainer: LanguageTrainer) -> None:
    """Check that the model's tokens alone are trained on, with the log-probs that they were sampled with."""
    origins, mask = rows["token_origin"][..., 0], rows["loss_mask"][..., 0]
    inside = torch.arange(mask.shape[1]) < rows["response_length"][:, None]
    assert torch.equal(mask, inside & (origins == Origin.MODEL))
    with torch.no_grad():
        theirs, _ = trainer.policy.evaluate(rows, 1.0)
    assert (theirs - rows["log_probs"]).abs().max() < 1e-5


def give_other_weights(rollout: AgentRollout, trainer: LanguageTrainer) -> None:
    """Halve the weights of a rollout's engine, so that only recorded turns can repeat what was sampled before."""
    halved = {name: (array / 2).astype(array.dtype) for name, array in trainer.weights().items()}
    assert rollout._engine is not None
    rollout._engine.update_weights(halved, 3)
