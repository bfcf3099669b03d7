"""Rollouts of agents in this process."""

from embodyflow.config.agent import AgentJobConfig
from embodyflow.data.batches import Columns
from embodyflow.data.rows_file import Journal
from embodyflow.rollouts.agent_rollout import AgentRollout
from embodyflow.training.language_trainer import LanguageTrainer


def rollout_of(config: AgentJobConfig, trainer: LanguageTrainer) -> AgentRollout:
    """Build a rollout with the weights of a trainer."""
    rollout = AgentRollout(config, 0, 1)
    rollout.update_weights(trainer.weights() | trainer.probe(), version=3)
    return rollout


def play(rollout: AgentRollout, journal: Journal | None = None) -> Columns:
    """Play the training episodes of the first iteration."""
    return rollout.play(rollout.training_episodes(0, 1), "train", (0, 1, "rollout"), journal)
