"""Behaviour cloning: the warm start fits a policy to demonstrations before RL."""

from collections.abc import Mapping, Sequence
from typing import Protocol, cast

import numpy as np
import torch
from tensordict import TensorDict

from embodyflow.config.language import LanguageConfig
from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.config.run import WarmStartConfig
from embodyflow.data.metrics import Metric, last, total
from embodyflow.policies.base import ImitatingPolicy, MemberPolicy, Policy
from embodyflow.policies.observations import MEMBER_KEY
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


OBSERVED = "observation."
"""Prefix of an observation's columns in :meth:`Steps.tensors`."""


class Steps:
    """Steps of episodes, each with the chunk of expert actions that follows.

    Args:
        tensors: Columns as :meth:`tensors` returns them.

    Attributes:
        observation: Columns ``[n, ...]`` by name, n samples in the order of episodes and steps.
        actions: Expert actions, float32 ``[n, H, A]``. After the end of a chunk's mask its last action is repeated,
            because a policy may attend to all of them.
        mask: True for the actions that count, bool ``[n, H]``: the first and any number of those after it.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.actions, self.mask = tensors["actions"], tensors["mask"]
        self.observation = {
            name.removeprefix(OBSERVED): values for name, values in tensors.items() if name.startswith(OBSERVED)
        }

    @classmethod
    def of_demonstrations(cls, demos: TensorDict, keys: Sequence[str], horizon: int) -> "Steps":
        """Return every step of every demonstration.

        Args:
            demos: Demonstrations from :meth:`.EmbodiedRollout.demonstrate`.
            keys: Observation columns besides the instruction.
            horizon: Number of actions per sample, H.
        """
        counted = torch.arange(demos["actions"].shape[1]) < demos["num_steps"][:, None]
        return cls._of_labels(demos, demos["actions"], counted, keys, horizon)

    @classmethod
    def of_labels(cls, rows: TensorDict, keys: Sequence[str], horizon: int) -> "Steps":
        """Return the labelled steps of episodes that a learner played, as DAgger aggregates them.

        The label of a step is the expert's action in the state that the learner visited. A chunk holds the labels of
        its step and of those that follow on the path that was executed, up to the first step without a label. So each
        of them is the expert's answer to the state in which the learner would execute that action of the chunk. They
        are no path of the expert: the states between them are the learner's, and approach the expert's as it learns.

        Args:
            rows: Rows from :meth:`~embodyflow.rollouts.embodied.embodied_rollout.EmbodiedRollout.label`.
            keys: Observation columns besides the instruction.
            horizon: Number of actions per sample, H.
        """
        return cls._of_labels(rows, rows["expert_actions"], rows["labelled"], keys, horizon)

    @classmethod
    def _of_labels(
        cls, rows: TensorDict, labels: torch.Tensor, labelled: torch.Tensor, keys: Sequence[str], horizon: int
    ) -> "Steps":
        """Return the steps with labels.

        Args:
            rows: Episodes, with the columns of ``keys`` and ``instruction_ids``.
            labels: Expert actions, float32 ``[N, T, A]``.
            labelled: Steps that have one, bool ``[N, T]``.
            keys: Observation columns besides the instruction.
            horizon: Number of actions per sample, H.
        """
        row, step = labelled.nonzero(as_tuple=True)
        ahead = step[:, None] + torch.arange(horizon)
        present = ahead < labelled.shape[1]
        mask = (labelled[row[:, None], ahead.clamp(max=labelled.shape[1] - 1)] & present).cumprod(1).bool()
        last = step[:, None] + mask.sum(1, keepdim=True) - 1
        columns = {OBSERVED + key: rows[key][row, step] for key in keys}
        columns[OBSERVED + "instruction_ids"] = rows["instruction_ids"][row]
        return cls({"actions": labels[row[:, None], ahead.minimum(last)], "mask": mask, **columns})

    @classmethod
    def joined(cls, parts: Sequence["Steps"]) -> "Steps":
        """Return the steps of all parts, in their order."""
        columns = [part.tensors() for part in parts]
        return cls({name: torch.cat([each[name] for each in columns]) for name in columns[0]})

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return all columns by name, those of the observation with a prefix."""
        observation = {OBSERVED + key: values for key, values in self.observation.items()}
        return {"actions": self.actions, "mask": self.mask, **observation}

    def __len__(self) -> int:
        return len(self.actions)

    def take(self, chosen: np.ndarray) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
        """Return observation, actions and mask of the chosen samples."""
        index = torch.from_numpy(chosen)
        observation = {key: values[index] for key, values in self.observation.items()}
        return observation, self.actions[index], self.mask[index]


class StepSamples:
    """Steps as samples of a robot policy.

    Args:
        policy: Policy to fit.
        steps: Steps with the expert's actions.
        sigma: Standard deviation of the smoothing of the target token, in bins.
        action_dims: Dimensions of an action by member of ``env.members``; ``None`` if there is one kind of environment.
    """

    def __init__(
        self, policy: ImitatingPolicy, steps: Steps, sigma: float, action_dims: Sequence[int] | None = None
    ) -> None:
        self._action_dims = action_dims
        self._policy, self._steps, self._sigma = policy, steps, sigma
        self.num_draws = policy.num_imitation_draws

    def __len__(self) -> int:
        return len(self._steps)

    def num_targets(self, chosen: np.ndarray) -> int:
        """Return the number of action tokens; padding does not count."""
        counted = self._steps.mask[chosen]
        if self._action_dims is None:
            return int(counted.sum()) * self._steps.actions.shape[-1]
        members = self._steps.observation[MEMBER_KEY][chosen, 0]
        return int((counted.sum(1) * torch.tensor(self._action_dims)[members]).sum())

    def loss(self, chosen: np.ndarray, uniforms: np.ndarray) -> torch.Tensor:
        """Return the cross-entropy on the smoothed expert actions, summed."""
        return self._policy.imitation_loss(*self._steps.take(chosen), self._sigma, torch.from_numpy(uniforms))


class ActionSamples(StepSamples):
    """The steps of demonstrations. Building them sets the policy's normalization statistics.

    They are the data set's with ``warm_start.dataset.statistics=dataset``, else those of these steps.

    Args:
        policy: Policy to fit.
        demos: Demonstrations from :meth:`.EmbodiedRollout.demonstrate`.
        config: Run configuration.
    """

    def __init__(self, policy: ImitatingPolicy, demos: TensorDict, config: EmbodiedConfig) -> None:
        assert config.warm_start is not None
        steps = Steps.of_demonstrations(demos, config.policy.observation_keys, policy.horizon)
        super().__init__(policy, steps, config.warm_start.smoothing_bins, config.policy.action_dims_by_member)
        if "state" not in self._steps.observation:
            return
        states, dataset = self._steps.observation["state"].float(), config.warm_start.dataset
        if config.policy.action_dims_by_member is not None:
            cast(MemberPolicy, policy).set_member_normalization(states, self._steps.observation[MEMBER_KEY][:, 0])
        elif dataset is not None and dataset.statistics == "dataset":
            # Other jobs need none of the packages that it imports.
            from embodyflow.training.imitation.dataset_statistics import dataset_statistics

            policy.load_normalization(dataset_statistics(config, dataset))
        else:
            policy.set_normalization(states, self._steps.actions[:, 0])


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
