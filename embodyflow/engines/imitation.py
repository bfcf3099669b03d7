"""Behaviour cloning: a policy fitted to demonstrations before it learns by reinforcement."""

import numpy as np
import torch
from tensordict import TensorDict

from embodyflow.config import WarmStartConfig
from embodyflow.data.metrics import Metric, last, mean
from embodyflow.policies.base import ImitatingPolicy


class Samples:
    """Every step of every demonstration, with the chunk of expert actions that follows.

    Args:
        demos: see :meth:`~embodyflow.engines.embodied_rollout.EmbodiedRollout.demonstrate`.
        chunk_size: C, actions of a sample.

    Attributes:
        observation: name to ``[n, ...]``, n samples in the order of demonstrations and steps.
        actions: float32 ``[n, C, A]``.
        mask: bool ``[n, C]``, false for actions after the end of the demonstration.
    """

    def __init__(self, demos: TensorDict, chunk_size: int) -> None:
        lengths = demos["num_steps"].tolist()
        rows = [(row, step) for row, length in enumerate(lengths) for step in range(length)]
        row = torch.tensor([r for r, _ in rows])
        step = torch.tensor([s for _, s in rows])
        ahead = step[:, None] + torch.arange(chunk_size)
        self.mask = ahead < demos["num_steps"][row][:, None]
        self.actions = demos["actions"][row[:, None], ahead.clamp(max=demos["actions"].shape[1] - 1)]
        self.observation = {key: demos[key][row, step] for key in ("state", "image") if key in set(demos.keys())}
        self.observation["instruction_ids"] = demos["instruction_ids"][row]

    def __len__(self) -> int:
        return len(self.actions)

    def take(self, chosen: np.ndarray) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
        """Return observation, actions and mask of the chosen samples."""
        index = torch.from_numpy(chosen)
        observation = {key: values[index] for key, values in self.observation.items()}
        return observation, self.actions[index], self.mask[index]


def imitate(
    policy: ImitatingPolicy, samples: Samples, config: WarmStartConfig, *, seed: int, rank: int, world_size: int
) -> dict[str, Metric]:
    """Fit a sharded policy to the samples; every rank holds them all and takes its part of each batch.

    Args:
        policy: standardises states by the samples' statistics from now on.
        samples: of the demonstrations.
        config: of the fit.
        seed: of the batches.
        rank: of this process.
        world_size: ranks of the group.
    """
    policy.set_normalization(samples.observation["state"])
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=config.learning_rate, weight_decay=0.0)
    rng = np.random.default_rng(seed)
    losses = []
    for _ in range(config.steps):
        chosen = rng.integers(len(samples), size=config.batch_size)
        observation, actions, mask = samples.take(chosen[rank::world_size])
        num_tokens = samples.mask[chosen].sum() * samples.actions.shape[-1]
        loss = policy.imitation_loss(observation, actions, mask, config.smoothing_bins) / num_tokens
        (loss * world_size).backward()
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"sft/loss": mean(float(np.mean(losses[-50:]))), "sft/num_samples": last(len(samples))}
