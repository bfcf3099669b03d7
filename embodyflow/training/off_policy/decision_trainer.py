"""The trainer engine of off-policy training on episodes, whose transitions are decisions."""

from tensordict import TensorDict

from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.data.metrics import Metric
from embodyflow.training.off_policy.replay.episode_transitions import of_episodes
from embodyflow.training.off_policy.replay.replay_buffer import Shape
from embodyflow.training.off_policy.trainer import OffPolicyTrainer


class DecisionTrainer(OffPolicyTrainer):
    """Base of trainers whose transitions are decisions: each leads to a chunk of actions.

    Args:
        config: Run configuration.
        rank: 0.
        world_size: 1.
    """

    config: EmbodiedConfig

    def _build_models(self) -> None:
        super()._build_models()
        self._stored_iteration: int | None = None  # unknown after a load

    def store(self, batch: TensorDict, iteration: int) -> dict[str, Metric]:
        """Append the decisions of an iteration's episodes to the replay buffer.

        Args:
            batch: All rows of the iteration.
            iteration: Index of the iteration, from 1.

        Raises:
            RuntimeError: The buffer has the iteration's decisions already.
        """
        if iteration == self._stored_iteration:
            raise RuntimeError(f"iteration {iteration}: the replay buffer has its decisions already")
        self._stored_iteration = iteration
        return self._append(of_episodes(batch[batch["uid"].argsort()], self.config.policy.replayed_images))

    def load(self, folder: str) -> None:
        """Restore models and optimizers; the replay buffer is opened at this commit when it is first used."""
        super().load(folder)
        self._stored_iteration = None

    @property
    def _shape(self) -> Shape:
        size, *_ = self.config.policy.observation_shapes["state"]
        assert size is not None
        return Shape(1, size, self.config.policy.decision_dim, self.config.policy.replayed_images)
