"""The trainer engine of off-policy training on episodes, which starts from demonstrations."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from safetensors.numpy import load_file, save_file
from tensordict import TensorDict

from embodyflow.data.metrics import Metric
from embodyflow.process.files.file_modes import follow_umask
from embodyflow.training.off_policy.decision_trainer import DecisionTrainer
from embodyflow.training.off_policy.replay.episode_transitions import of_demonstrations
from embodyflow.training.off_policy.replay.image_replay import buffer_of
from embodyflow.training.off_policy.replay.replay_buffer import ReplayBuffer

PREFIX = "demonstrations."
"""Prefix of the demonstrations' columns in a file of warm-started weights."""


class EpisodeOffPolicyTrainer(DecisionTrainer):
    """The only rank of the trainer group of off-policy training on episodes and demonstrations.

    The demonstrations of the warm start lie in the run's folder ``demonstrations``, beside ``replay``, and in the file
    of warm-started weights, by which another run with the same warm start gets them. They are in memory until the
    folder has them.

    Args:
        config: Run configuration.
        rank: 0.
        world_size: 1.
    """

    def _build_models(self) -> None:
        super()._build_models()
        self._demonstrated_columns: dict[str, np.ndarray] = {}

    def fit(self, demos: TensorDict, seed: int) -> dict[str, Metric]:
        """Fine-tune on demonstrations and keep them; see :meth:`FSDPTrainer.fit`."""
        metrics = super().fit(demos, seed)
        policy = self.config.policy
        self._demonstrated_columns = of_demonstrations(demos, policy.chunk_size, policy.replayed_images)
        return metrics

    def save_weights_file(self, path: str) -> None:
        """Write the policy's weights and the demonstrations to a safetensors file."""
        columns = {PREFIX + name: column for name, column in self._columns().items()}
        save_file(self.weights() | columns, path)
        follow_umask(Path(path))

    def load_weights_file(self, path: str) -> None:
        """Start RL from the policy weights and demonstrations in a file that :meth:`save_weights_file` wrote."""
        found = load_file(path)
        self._imitation = None  # the file holds its result
        self.policy_weights.load({name: each for name, each in found.items() if not name.startswith(PREFIX)})
        self._restart_from_policy()
        self._demonstrated_columns = {
            name.removeprefix(PREFIX): column for name, column in found.items() if name.startswith(PREFIX)
        }

    def _begin_buffer(self) -> None:
        self._demonstrated_columns = self._columns()  # a branch has a folder of its own
        super()._begin_buffer()

    def _columns(self) -> dict[str, np.ndarray]:
        """Return the demonstrations by column, as the replay buffer takes them; empty before there are any."""
        if self._commit is not None:
            return self._open_demonstrations().columns()
        return self._demonstrated_columns if self._demonstrations is None else self._demonstrations.columns()

    @property
    def _demonstrations_folder(self) -> Path:
        if self._folder is None:  # a run without checkpoints
            self._temporary_demonstrations = TemporaryDirectory(prefix="embodyflow-demonstrations-")
            return Path(self._temporary_demonstrations.name)
        return self._folder.parent / "demonstrations"

    def _open_demonstrations(self) -> ReplayBuffer:
        if self._commit is not None:
            return buffer_of(self._shape).demonstrations(self._demonstrations_folder, self._shape)
        count = len(self._demonstrated_columns["reward"])
        shape = replace(self._shape, num_envs=self.config.policy.chunk_size)
        buffer = buffer_of(shape).create(self._demonstrations_folder, shape, count)
        buffer.append(self._demonstrated_columns)
        buffer.commit()
        self._demonstrated_columns = {}
        return buffer
