"""A critic that shares the policy's features: a small head on what the policy computes before it decides.

The features are those of the policy as it is, so one forward pass gives log-probs and values. The critic's loss reaches
the policy's weights with the coefficient ``critic.coef`` (c₁ in Schulman et al. 2017, arXiv:1707.06347, equation 9). It
scales the gradient at the features and not the loss. So the head learns alike whatever the coefficient, and 0 detaches
it: one formula has both ways of RLinf (arXiv:2509.15965, arXiv:2510.06710), where the loss of the values trains OpenVLA
and does not train π0. The sizes of the head are RLinf's too.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from embodyflow.algorithms.masked import AllReduce, Metrics
from embodyflow.config import RunConfig
from embodyflow.policies.base import Critic, FeaturePolicy, Policy
from embodyflow.policies.decisions import at_decisions
from embodyflow.policies.policy_config import ControlPolicyConfig, EmbodiedPolicyConfig
from embodyflow.policies.policy_registry import build_critic
from embodyflow.training.objectives import PolicyObjective, ValueObjective
from embodyflow.training.parallel.sharding import reshard

HIDDEN_SIZES = (512, 128)


class ValueHead(nn.Module):
    """Maps features to values, which are 0 before any training.

    Args:
        num_features: F.
        num_values: V, values of a decision.
    """

    def __init__(self, num_features: int, num_values: int) -> None:
        super().__init__()
        sizes = (num_features, *HIDDEN_SIZES)
        # SmolVLA's features are sums of its layers' outputs, whose size no layer bounds.
        self.layers = nn.Sequential(nn.LayerNorm(num_features))
        for pair in pairwise(sizes):
            self.layers.extend([nn.Linear(*pair), nn.GELU()])
        last = nn.Linear(sizes[-1], num_values)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.layers.append(last)

    def forward(self, features: Tensor) -> Tensor:
        """Return the values, float [D, V], of features float [D, F]."""
        weight = cast(Tensor, self.layers[0].weight)  # of a lower precision during a pass in bfloat16
        values: Tensor = self.layers(features.to(weight.dtype))
        return values


class SharedCritic:
    """A head on a policy's features, as :class:`~embodyflow.policies.base.Critic`.

    Args:
        policy: Policy in training.
        num_values: V, values of a decision: 1, or one for each action of the chunk.
        coef: Coefficient of the critic's loss in the gradient of the policy's weights.
        device: Device of the head.

    Attributes:
        model: The head.
        policy: The policy.
    """

    def __init__(self, policy: FeaturePolicy, num_values: int, coef: float, device: str) -> None:
        self.policy, self._num_values, self._coef = policy, num_values, coef
        self.model: nn.Module = ValueHead(policy.feature_size, num_values).to(device)

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """None: the head is sharded as a whole."""
        return []

    def evaluate(self, batch: TensorDict) -> Tensor:
        """Return the values of each decision, float32 ``[N, T]``, or ``[N, T, C]`` if each action has one.

        The policy's weights get no gradient: here the head learns alone.
        """
        with torch.no_grad():
            features = self.policy.features(batch)
        reshard(self.policy.model)  # there is no backward pass to release what the forward pass gathered
        return self._values(features, batch)

    def evaluate_both(self, batch: TensorDict, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return the policy's log-probs and entropy, and the values, from one forward pass."""
        log_probs, entropy, features = self.policy.evaluate_with_features(batch, temperature)
        fixed = features.detach()
        return log_probs, entropy, self._values(fixed + self._coef * (features - fixed), batch)

    def start_from(self, policy_state: Mapping[str, Any]) -> None:
        """Do nothing: the features are the policy's."""

    def _values(self, features: Tensor, batch: TensorDict) -> Tensor:
        mask = batch["loss_mask"].to(features.device)
        valued = mask.unflatten(-1, (self._num_values, -1)).any(-1)
        return at_decisions(self.model(features), mask.any(-1), valued).squeeze(-1)


class SharedObjective:
    """The losses of policy and critic from one forward pass.

    Args:
        policy: Loss of the policy.
        value: Loss of the critic.
        critic: Critic that computes both.
        temperature: Temperature of the log-probs.
    """

    def __init__(
        self, policy: PolicyObjective, value: ValueObjective, critic: SharedCritic, temperature: float
    ) -> None:
        self._policy, self._value, self._critic, self._temperature = policy, value, critic, temperature

    def prepare(self, rows: TensorDict, cuts: Sequence[slice], total_rows: int, all_reduce: AllReduce) -> TensorDict:
        """Add the columns of both losses; see :class:`~embodyflow.training.objectives.Objective`."""
        rows = self._policy.prepare(rows, cuts, total_rows, all_reduce)
        return self._value.prepare(rows, cuts, total_rows, all_reduce)

    def loss(self, rows: TensorDict) -> tuple[Tensor, Metrics]:
        """Return the sum of the rows' shares of both losses."""
        log_probs, entropy, values = self._critic.evaluate_both(rows, self._temperature)
        policy_loss, of_policy = self._policy.loss_of(rows, log_probs, entropy)
        value_loss, of_critic = self._value.loss_of(rows, values)
        return policy_loss + value_loss, of_policy | of_critic


def build_critic_for(config: RunConfig, policy: Policy, device: str) -> Critic:
    """Return the critic that the configuration asks for: a head on the policy's features, or a model of its own.

    Args:
        config: Run configuration.
        policy: Policy in training.
        device: Device of the critic's model.
    """
    critic = config.critic
    if critic.features == "own":
        return build_critic(config.policy, device)
    num_values = 1
    if critic.level == "action":
        assert isinstance(config.policy, EmbodiedPolicyConfig | ControlPolicyConfig), (
            "only policies that act have chunks"
        )
        num_values = config.policy.chunk_size
    return SharedCritic(cast(FeaturePolicy, policy), num_values, critic.coef, device)
