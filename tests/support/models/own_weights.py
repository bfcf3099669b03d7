"""Agents with weights of their own in this process."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from agent_rollouts import play, rollout_of
from ring_jobs import ring_config
from trainers import free_address

from embodyflow.config.agents.agent import AgentJobConfig
from embodyflow.data.batches import to_batch
from embodyflow.policies.language.agent_arrays import arrays_of
from embodyflow.training.agents_trainer import AgentsTrainer
from embodyflow.types import Batch

Weights = Mapping[str, np.ndarray]


def own_config(*overrides: str, **ring: Any) -> AgentJobConfig:
    """Compose the tiny run of a ring whose agents have weights of their own."""
    return ring_config("ring_jobs:Digits", overrides=("rollout.agent.weights=own", *overrides), **ring)


@contextmanager
def agents_trainer(config: AgentJobConfig, rank: int = 0, address: str = "", num_ranks: int = 1) -> Iterator[Any]:
    """Yield a trainer, which is closed at the end."""
    trainer = AgentsTrainer(config, rank, num_ranks)
    trainer.connect(address or free_address())
    try:
        yield trainer
    finally:
        trainer.close()


def rows_to_train_on(config: AgentJobConfig, trainer: AgentsTrainer) -> Batch:
    """Return sampled episodes with random advantages and log-probs slightly off the policy's."""
    rollout, rng = rollout_of(config, trainer), np.random.default_rng(0)  # type: ignore[arg-type]
    rows = to_batch(play(rollout))
    rollout.close()
    mask = rows["loss_mask"]
    noise = torch.from_numpy(rng.standard_normal((3, *mask.shape)).astype(np.float32)) * mask
    rows["old_log_probs"], rows["ref_log_probs"] = rows["log_probs"] + 0.1 * noise[:2]
    rows["advantages"] = noise[2]
    return rows


def step(trainer: Any, rows: Batch, iteration: int = 1) -> dict[str, Any]:
    """Train on all rows, with draws of the iteration."""
    positions = np.arange(len(rows))
    metrics: dict[str, Any] = trainer.step(
        rows, positions=positions, total_rows=len(rows), seed=iteration, iteration=iteration
    )
    return metrics


def of_agents(weights: Weights) -> list[dict[str, np.ndarray]]:
    """Return the weights of the reasoner and of the actor."""
    return [arrays_of(name, weights) for name in ("reasoner", "actor")]


def are_equal(some: Weights, others: Weights) -> bool:
    """Return True if all weights agree to the last bit."""
    return some.keys() == others.keys() and all(np.array_equal(some[name], others[name]) for name in some)


def mute(model: Any, token: int) -> None:
    """Let a tied model say one token, whatever it reads.

    Without attention and MLPs, every embedding points in one direction, that of the token the farthest.
    """
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.zero_()
        embedding = model.get_input_embeddings().weight
        embedding.fill_(0.1)
        embedding[token] = 10.0
