"""Behaviour cloning: the warm start fits a policy to demonstrations before RL."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from tensordict import TensorDict

from embodyflow.config.language import LanguageConfig
from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.config.run import WarmStartConfig
from embodyflow.data.metrics import Metric, last, total
from embodyflow.policies.base import ImitatingPolicy, Policy
from embodyflow.seeding import derive_rng
from embodyflow.training.parallel.sharding import clip_gradients


class Samples(Protocol):
    """Training samples for a policy. The trainer builds them as ``Class(policy, demonstrations, run_config)``.

    Attributes:
        num_draws: Number of random draws that the loss of one sample uses.
    """

    num_draws: int

    def __len__(self) -> int: ...

    def num_targets(self, chosen: np.ndarray) -> int:
        """Return the number of target tokens in the chosen samples, int64 ``[n]``."""

    def loss(self, chosen: np.ndarray, uniforms: np.ndarray) -> torch.Tensor:
        """Return the policy's cross-entropy on the target tokens of the chosen samples, summed.

        Args:
            chosen: Indices of the samples, int64 ``[n]``.
            uniforms: Random draws in [0, 1), float32 ``[n, num_draws]``.
        """


class Steps:
    """Every step of every demonstration, with the chunk of expert actions that follows.

    Args:
        demos: Demonstrations from :meth:`~embodyflow.rollouts.embodied_rollout.EmbodiedRollout.demonstrate`.
        keys: Observation columns besides the instruction.
        horizon: Number of actions per sample, H.

    Attributes:
        observation: Columns ``[n, ...]`` by name, n samples in the order of demonstrations and steps.
        actions: Expert actions, float32 ``[n, H, A]``. After the end of a demonstration its last action is repeated,
            because a policy may attend to all of them.
        mask: True for actions before the end of the demonstration, bool ``[n, H]``.
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
    """The steps of demonstrations. Building them sets the policy's normalization statistics.

    They are the data set's with ``warm_start.dataset.statistics=dataset``, else those of these steps.

    Args:
        policy: Policy to fit.
        demos: Demonstrations from :meth:`~embodyflow.rollouts.embodied_rollout.EmbodiedRollout.demonstrate`.
        config: Run configuration.
    """

    def __init__(self, policy: ImitatingPolicy, demos: TensorDict, config: EmbodiedConfig) -> None:
        assert config.warm_start is not None
        self._policy, self._sigma = policy, config.warm_start.smoothing_bins
        self._steps = Steps(demos, config.policy.observation_keys, policy.horizon)
        self.num_draws = policy.num_imitation_draws
        if "state" not in self._steps.observation:
            return
        dataset = config.warm_start.dataset
        if dataset is not None and dataset.statistics == "dataset":
            # Other jobs need none of the packages that it imports.
            from embodyflow.training.dataset_statistics import dataset_statistics

            policy.load_normalization(dataset_statistics(config, dataset))
        else:
            policy.set_normalization(self._steps.observation["state"].float(), self._steps.actions[:, 0])

    def __len__(self) -> int:
        return len(self._steps)

    def num_targets(self, chosen: np.ndarray) -> int:
        """Return the number of action tokens."""
        return int(self._steps.mask[chosen].sum()) * self._steps.actions.shape[-1]

    def loss(self, chosen: np.ndarray, uniforms: np.ndarray) -> torch.Tensor:
        """Return the cross-entropy on the smoothed expert actions, summed."""
        return self._policy.imitation_loss(*self._steps.take(chosen), self._sigma, torch.from_numpy(uniforms))


class ResponseSamples:
    """Responses to imitate. Every token of the model is a target; of an agent these are its turns.

    Args:
        policy: Policy to fit.
        demos: Language rows.
        config: Run configuration.
    """

    num_draws = 0

    def __init__(self, policy: Policy, demos: TensorDict, config: LanguageConfig) -> None:
        self._policy, self._demos = policy, demos

    def __len__(self) -> int:
        return len(self._demos)

    def num_targets(self, chosen: np.ndarray) -> int:
        """Return the number of the model's tokens."""
        return int(self._demos["loss_mask"][chosen].sum())

    def loss(self, chosen: np.ndarray, uniforms: np.ndarray) -> torch.Tensor:
        """Return the cross-entropy on the responses' tokens, summed."""
        log_probs, _ = self._policy.evaluate(self._demos[torch.from_numpy(chosen)], 1.0)
        return -log_probs.sum()


class Imitation:
    """A fit of a sharded model to samples; every rank holds all samples and trains on its part of each batch.

    Steps taken in several calls give the same weights as in one.

    Args:
        model: Model of the policy that the samples belong to.
        samples: Training samples.
        config: Batch size and learning rate.
        seed: Seed for drawing the batches and for the draws of the loss.
        part: Index of this rank's part of each batch.
        num_parts: Number of parts that a batch is cut into.
    """

    def __init__(
        self, model: torch.nn.Module, samples: Samples, config: WarmStartConfig, *, seed: int, part: int, num_parts: int
    ) -> None:
        self._model, self._samples, self._batch_size = model, samples, config.batch_size
        self._mine, self._num_parts = slice(part, None, num_parts), num_parts
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=0.0)
        self._rng, self._noise = np.random.default_rng(seed), derive_rng(seed, "imitation draws")
        self._losses: list[float] = []

    def advance(self, num_steps: int) -> dict[str, Metric]:
        """Take optimizer steps; return metrics of the fit so far.

        The metric ``sft/loss`` is the mean over tokens in the last 50 steps; each part reports its share of the sum.

        Raises:
            FloatingPointError: A gradient is NaN or inf.
        """
        for _ in range(num_steps):
            self._step()
        return {
            "sft/loss": total(float(np.mean(self._losses[-50:]))),
            "sft/num_samples": last(len(self._samples)),
            "sft/steps": last(len(self._losses)),
        }

    def _step(self) -> None:
        chosen = self._rng.integers(len(self._samples), size=self._batch_size)
        uniforms = self._noise.random((len(chosen), self._samples.num_draws), dtype=np.float32)
        loss = self._samples.loss(chosen[self._mine], uniforms[self._mine]) / self._samples.num_targets(chosen)
        (loss * self._num_parts).backward()
        clip_gradients(list(self._model.parameters()), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._losses.append(loss.item())
