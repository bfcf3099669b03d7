"""The categorical policy as an :class:`~embodyflow.policies.base.ActingPolicy`."""

import numpy as np
import torch
from tensordict import TensorDict

from embodyflow.policies.action_tokens import choose_tokens, token_entropy, token_log_probs
from embodyflow.policies.base import Decision
from embodyflow.policies.control.mlp.policy_mlp import MLPPolicy
from embodyflow.policies.control.mlp_categorical.configuration_mlp_categorical import MLPCategoricalConfig
from embodyflow.policies.control.mlp_categorical.modeling_mlp_categorical import MLPCategorical


class MLPCategoricalPolicy(MLPPolicy):
    """Samples one of K actions per decision.

    ``action_tokens`` records the index of the action, int64 ``[..., 1]`` from 0 to K - 1. The environment's
    ``Discrete`` space may start at another number; the rollout adds it. An index has one log-prob, so L is 1.

    Args:
        config: Sizes.
        device: Device of the model.
    """

    token_dtype = np.dtype(np.int64)

    def __init__(self, config: MLPCategoricalConfig, device: str) -> None:
        super().__init__(config, MLPCategorical(config), device)

    @torch.inference_mode()
    def act(self, observation: dict[str, np.ndarray], uniforms: np.ndarray | None, temperature: float) -> Decision:
        """Decide for n environments; see :class:`~embodyflow.policies.base.ActingPolicy`.

        Args:
            observation: ``state``, float32 ``[n, S]``.
            uniforms: Random numbers in [0, 1), ``[n, 1]``; ``None`` takes the most probable action.
            temperature: Positive divisor of the logits.
        """
        logits = self.model(torch.from_numpy(observation["state"]).to(self._device)).unsqueeze(1)
        draws = None if uniforms is None else torch.from_numpy(uniforms).to(self._device)
        chosen, log_probs = choose_tokens(logits, draws, temperature)
        tokens = chosen.cpu().numpy()
        return Decision(tokens, log_probs.cpu().numpy(), tokens[:, None].astype(np.float32))

    def evaluate(self, batch: TensorDict, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probs and entropy (nats) of a batch's actions, float32 ``[N, T, 1]``; zero outside its mask."""
        mask, tokens = batch["loss_mask"].to(self._device), batch["action_tokens"].to(self._device)
        logits = self.model(batch["state"].to(self._device)).unsqueeze(-2)
        log_probs, entropy = token_log_probs(logits, tokens, temperature), token_entropy(logits, temperature)
        return log_probs.where(mask, 0.0), entropy.where(mask, 0.0)
