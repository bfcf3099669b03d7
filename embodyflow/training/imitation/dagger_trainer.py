"""The trainer engine of DAgger: the labelled steps of all iterations, and fits of the policy to them."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tensordict import TensorDict

from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.data.metrics import Metric, last
from embodyflow.policies.base import ImitatingPolicy
from embodyflow.process.files.file_modes import follow_umask
from embodyflow.training.fsdp_trainer import FSDPTrainer
from embodyflow.training.imitation.imitation import Imitation, Steps, StepSamples

FILE = "labelled_steps.safetensors"
"""File of a checkpoint with the labelled steps."""
PREFIX = "labelled_steps."
"""Prefix of their columns in a file of warm-started weights."""


class DaggerTrainer(FSDPTrainer):
    """The only rank of the trainer group of DAgger (Ross et al. 2011, arXiv:1011.0686).

    Its data begin with the demonstrations of the warm start. Each fit begins with the weights of the one before and a
    fresh optimizer. So the state between iterations is the weights and the data, and every checkpoint has both. The
    statistics that normalise states and actions stay those of the demonstrations, because others would change what the
    policy does with the same weights.

    Args:
        config: Run configuration.
        rank: 0.
        world_size: 1.
    """

    config: EmbodiedConfig
    policy: ImitatingPolicy

    def _build_models(self) -> None:
        super()._build_models()
        self._steps: Steps | None = None
        self._stored_iteration: int | None = None  # unknown after a load

    @property
    def steps(self) -> Steps:
        """The labelled steps so far, those of the demonstrations first.

        Raises:
            RuntimeError: There was neither a warm start nor a load.
        """
        if self._steps is None:
            raise RuntimeError("there are no labelled steps before a warm start")
        return self._steps

    def fit(self, demos: TensorDict, seed: int) -> dict[str, Metric]:
        """Fine-tune on demonstrations and keep them; see :meth:`FSDPTrainer.fit`."""
        metrics = super().fit(demos, seed)
        self._steps = Steps.of_demonstrations(demos, self.config.policy.observation_keys, self.policy.horizon)
        return metrics

    def store(self, batch: TensorDict, iteration: int) -> dict[str, Metric]:
        """Add an iteration's labelled steps.

        Args:
            batch: All rows of the iteration.
            iteration: Index of the iteration, from 1.

        Raises:
            RuntimeError: The steps of the iteration are there already.
        """
        if iteration == self._stored_iteration:
            raise RuntimeError(f"iteration {iteration}: its labelled steps are stored already")
        ordered = batch[batch["uid"].argsort()]
        new = Steps.of_labels(ordered, self.config.policy.observation_keys, self.policy.horizon)
        self._steps, self._stored_iteration = Steps.joined([self.steps, new]), iteration
        return {"dagger/num_samples": last(len(self._steps))}

    def imitate(self, seed: int, iteration: int) -> dict[str, Metric]:
        """Take ``dagger.steps`` optimizer steps on all labelled steps.

        Args:
            seed: Seed for drawing the batches.
            iteration: Index of the iteration, from 1; the learning rate schedule may depend on it.
        """
        settings, fitting = self.config.dagger, self.config.warm_start
        assert settings is not None and fitting is not None  # the configuration was refused without them
        rate = self._rate(iteration) * self.config.trainer.learning_rate
        samples = StepSamples(self.policy, self.steps, fitting.smoothing_bins)
        fitting = fitting.model_copy(update={"learning_rate": rate})
        fit = Imitation(self.policy.model, samples, fitting, seed=seed, part=0, num_parts=1)
        return {
            "dagger/loss": fit.advance(settings.steps)["sft/loss"],
            "train/learning_rate": last(rate),
            "train/optimizer_steps": last(settings.steps),
        }

    def save_weights_file(self, path: str) -> None:
        """Write the policy's weights and the labelled steps to a safetensors file."""
        weights = {name: torch.from_numpy(array) for name, array in self.weights().items()}
        steps = {PREFIX + name: column.contiguous() for name, column in self.steps.tensors().items()}
        save_file(weights | steps, path)
        follow_umask(Path(path))

    def load_weights_file(self, path: str) -> None:
        """Start from the policy weights and labelled steps in a file that :meth:`save_weights_file` wrote."""
        found = load_file(path)
        steps = {name.removeprefix(PREFIX): each for name, each in found.items() if name.startswith(PREFIX)}
        self._imitation = None  # the file holds its result
        self.policy_weights.load({name: each.numpy() for name, each in found.items() if not name.startswith(PREFIX)})
        self._restart_from_policy()
        self._steps, self._stored_iteration = Steps(steps), None

    def save(self, folder: str, whole: bool = True) -> None:
        """Write models, optimizers and the labelled steps to a folder; see :meth:`FSDPTrainer.save`."""
        super().save(folder, whole)
        save_file({name: column.contiguous() for name, column in self.steps.tensors().items()}, Path(folder, FILE))
        follow_umask(Path(folder, FILE))

    def load(self, folder: str) -> None:
        """Restore models, optimizers and the labelled steps."""
        super().load(folder)
        self._steps, self._stored_iteration = Steps(load_file(Path(folder, FILE))), None
