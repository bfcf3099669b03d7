"""Networks of the policy with batch renormalisation and of its critics, initialised as torch initialises layers."""

from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from embodyflow.policies.control.mlp_renorm.batch_renorm import BatchRenorm
from embodyflow.policies.control.mlp_renorm.configuration_mlp_renorm import MLPRenormConfig
from embodyflow.policies.control.mlp_squashed.modeling_mlp_squashed import LOG_STD_BOUNDS, LinearEnsemble


class MLPRenorm(nn.Module):
    """Maps states to the Gaussian whose samples are squashed by tanh; the inputs of every layer are renormalised."""

    def __init__(self, config: MLPRenormConfig) -> None:
        super().__init__()
        norm = partial(BatchRenorm, momentum=config.renorm_momentum, warmup_steps=config.renorm_warmup_steps)
        sizes = [config.state_dim] + [config.hidden_size] * config.num_layers
        self.blocks = nn.ModuleList(nn.Sequential(norm(a), nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(sizes))
        self.norm = norm(config.hidden_size)
        self.mean = nn.Linear(config.hidden_size, config.decision_dim)
        self.log_std = nn.Linear(config.hidden_size, config.decision_dim)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and log-deviations, float32 ``[..., A]``, of states ``[..., S]``."""
        features = state
        for block in self.blocks:
            features = block(features)
        features = self.norm(features)
        return self.mean(features), self.log_std(features).clamp(*LOG_STD_BOUNDS)


class RenormCritics(nn.Module):
    """K networks that map states and actions to values, computed together; inputs of every layer are renormalised."""

    def __init__(self, config: MLPRenormConfig) -> None:
        super().__init__()
        num, size = config.num_critics, config.critic_hidden_size
        norm = partial(
            BatchRenorm,
            num_members=num,
            momentum=config.renorm_momentum,
            warmup_steps=config.renorm_warmup_steps,
        )
        sizes = [config.state_dim + config.decision_dim] + [size] * config.num_layers
        self.blocks = nn.ModuleList(
            nn.Sequential(norm(a), LinearEnsemble(num, a, b), nn.ReLU()) for a, b in pairwise(sizes)
        )
        self.norm, self.value = norm(size), LinearEnsemble(num, size, 1)

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        """Return values, float32 ``[K, B]``, of states ``[B, S]`` and actions ``[B, A]``."""
        features = torch.cat([state, action], -1).expand(len(self.value.bias), -1, -1)
        for block in self.blocks:
            features = block(features)
        values: Tensor = self.value(self.norm(features)).squeeze(-1)
        return values
