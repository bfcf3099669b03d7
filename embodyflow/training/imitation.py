"""Behaviour cloning: a policy fitted to demonstrations before it learns by reinforcement."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from tensordict import TensorDict

from embodyflow.config.embodied import EmbodiedConfig
from embodyflow.config.language import LanguageConfig
from embodyflow.config.run import WarmStartConfig
from embodyflow.data.metrics import Metric, last, total
from embodyflow.policies.base import ImitatingPolicy, Policy
from embodyflow.seeding import derive_rng
from embodyflow.training.sharding import clip_gradients


class Samples(Protocol):
    """What a policy is fitted to, built as ``Class(policy, demonstrations, config)`` of the run.

    Attributes:
        num_draws: random numbers that the loss of one sample takes.
    """

    num_draws: int

    def __len__(self) -> int: ...

    def num_targets(self, chosen: np.ndarray) -> int:
        """Return how many tokens the chosen samples, int64 ``[n]``, have as targets."""

    def loss(self, chosen: np.ndarray, uniforms: np.ndarray) -> torch.Tensor:
        """Return the policy's cross-entropy to those tokens, summed, by draws float32 ``[n, num_draws]`` in [0, 1)."""


class Steps:
    """Every step of every demonstration, with the chunk of expert actions that follows.

    Args:
        demos: see :meth:`~embodyflow.rollouts.embodied_rollout.EmbodiedRollout.demonstrate`.
        keys: columns that are observed, beside the instruction.
        horizon: H, actions of a sample.

    Attributes:
        observation: name to ``[n, ...]``, n samples in the order of demonstrations and steps.
        actions: float32 ``[n, H, A]``; after the end the last one again, since a policy may heed them all.
        mask: bool ``[n, H]``, false for actions after the end of the demonstration.
    """

    def __init__(self, demos: TensorDict, keys: Sequence[str], horizon: int) -> None:
        lengths = demos["num_steps"].tolist()
        rows = [(row, step) for row, length in enumerate(lengths) for step in range(length)]
        row = torch.tensor([r for r, _ in rows])
        step = torch.tensor([s for _, s in rows])
        ahead = step[:, None] + torch.arange(horizon)
        self.mask = ahead < demos["num_steps"][row][:, None]
        last = demos["num_steps"][row][:, None] - 1
        self.actions = demos["actions"][row[:, None], ahead.clamp(max=last)]
        self.observation = {key: demos[key][row, step] for key in keys}
        self.observation["instruction_ids"] = demos["instruction_ids"][row]

    def __len__(self) -> int:
        return len(self.actions)

    def take(self, chosen: np.ndarray) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
        """Return observation, actions and mask of the chosen samples."""
        index = torch.from_numpy(chosen)
        observation = {key: values[index] for key, values in self.observation.items()}
        return observation, self.actions[index], self.mask[index]


class ActionSamples:
    """The steps of an expert's episodes; the policy standardises states by their statistics from now on.

    Args:
        policy: to be fitted.
        demos: see :meth:`~embodyflow.rollouts.embodied_rollout.EmbodiedRollout.demonstrate`.
        config: of the run.
    """

    def __init__(self, policy: ImitatingPolicy, demos: TensorDict, config: EmbodiedConfig) -> None:
        assert config.warm_start is not None
        self._policy, self._sigma = policy, config.warm_start.smoothing_bins
        self._steps = Steps(demos, config.policy.observation_keys, policy.horizon)
        self.num_draws = policy.num_imitation_draws
        if "state" in self._steps.observation:
            policy.set_normalization(self._steps.observation["state"].float(), self._steps.actions[:, 0])

    def __len__(self) -> int:
        return len(self._steps)

    def num_targets(self, chosen: np.ndarray) -> int:
        """Return the number of action tokens."""
        return int(self._steps.mask[chosen].sum()) * self._steps.actions.shape[-1]

    def loss(self, chosen: np.ndarray, uniforms: np.ndarray) -> torch.Tensor:
        """Return the cross-entropy to the smoothed expert actions, summed."""
        return self._policy.imitation_loss(*self._steps.take(chosen), self._sigma, torch.from_numpy(uniforms))


class ResponseSamples:
    """Responses to imitate, all tokens of each.

    Args:
        policy: to be fitted.
        demos: language rows.
        config: of the run.
    """

    num_draws = 0

    def __init__(self, policy: Policy, demos: TensorDict, config: LanguageConfig) -> None:
        self._policy, self._demos = policy, demos

    def __len__(self) -> int:
        return len(self._demos)

    def num_targets(self, chosen: np.ndarray) -> int:
        """Return the number of response tokens."""
        return int(self._demos["response_length"][chosen].sum())

    def loss(self, chosen: np.ndarray, uniforms: np.ndarray) -> torch.Tensor:
        """Return the cross-entropy to the responses' tokens, summed."""
        log_probs, _ = self._policy.evaluate(self._demos[torch.from_numpy(chosen)], 1.0)
        return -log_probs.sum()


def imitate(
    model: torch.nn.Module, samples: Samples, config: WarmStartConfig, *, seed: int, part: int, num_parts: int
) -> dict[str, Metric]:
    """Fit a sharded model to the samples; every rank holds them all and takes its part of each batch.

    Of ``sft/loss``, the mean over tokens in the last steps, each part says its own share.

    Args:
        model: of the policy that the samples were made for.
        samples: of the demonstrations.
        config: of the fit.
        seed: of the batches, and of what losses draw.
        part: of each batch, that is this rank's.
        num_parts: that a batch is cut into.

    Raises:
        FloatingPointError: a gradient is not finite.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=0.0)
    rng, noise = np.random.default_rng(seed), derive_rng(seed, "imitation draws")
    losses = []
    for _ in range(config.steps):
        chosen = rng.integers(len(samples), size=config.batch_size)
        uniforms = noise.random((len(chosen), samples.num_draws), dtype=np.float32)
        mine = slice(part, None, num_parts)
        loss = samples.loss(chosen[mine], uniforms[mine]) / samples.num_targets(chosen)
        (loss * num_parts).backward()
        clip_gradients(list(model.parameters()), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"sft/loss": total(float(np.mean(losses[-50:]))), "sft/num_samples": last(len(samples))}
