"""The trainer engine of DSRL (Wagenmaker et al. 2025, arXiv:2506.15799), which learns the noise of a frozen policy."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict

from embodyflow.policies.embodied.steered.modeling_steered import FROZEN
from embodyflow.policies.embodied.steered.policy_steered import SteeredPolicy
from embodyflow.training.checkpoint_reading import load_checkpoint
from embodyflow.training.off_policy.decision_trainer import DecisionTrainer
from embodyflow.training.policy_weights import AllWeights, PolicyWeights


class SteeringWeights(AllWeights):
    """Weights of a policy that steers a frozen one; a warm start trains the latter.

    Args:
        policy: Policy before sharding.
    """

    def __init__(self, policy: SteeredPolicy) -> None:
        super().__init__(policy)
        self._network = policy.network

    @contextmanager
    def warm_starting(self) -> Iterator[None]:
        """Make the weights trainable within the block that are frozen in RL."""
        self._network.set_imitating(True)
        try:
            yield
        finally:
            self._network.set_imitating(False)


class SteeringTrainer(DecisionTrainer):
    """The only rank of the trainer group of DSRL.

    The action of a transition is the noise of a decision. The demonstrations of the warm start have no noise, so they
    train the frozen policy alone. Every checkpoint has the frozen weights, because a branch begins with one checkpoint.

    Args:
        config: Run configuration.
        rank: 0.
        world_size: 1.
    """

    def save(self, folder: str, whole: bool = True) -> None:
        """Write models, optimizers, the frozen weights and the reference to the replay buffer.

        Args:
            folder: An empty folder.
            whole: Not used: a checkpoint is always whole.

        Raises:
            RuntimeError: Transitions were stored before the first checkpoint, and so outside of the run's folder.
        """
        del whole
        super().save(folder, whole=True)

    def load(self, folder: str) -> None:
        """Restore models, optimizers and the frozen weights; the replay buffer is opened when it is first used."""
        super().load(folder)
        model = self.policy.model
        state: dict[str, Any] = {n: v for n, v in get_model_state_dict(model).items() if n.startswith(FROZEN)}
        load_checkpoint({"policy": {"model": state}}, folder)
        set_model_state_dict(model, state, options=StateDictOptions(strict=False))

    def _build_policy_weights(self) -> PolicyWeights:
        return SteeringWeights(cast(SteeredPolicy, self.policy))

    @property
    def _discount(self) -> float:
        """Discount of a decision: that of the steps of a chunk."""
        return float(self.config.algorithm.gamma**self.config.policy.chunk_size)
