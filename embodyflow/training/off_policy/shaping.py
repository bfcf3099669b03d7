"""Dense rewards by potential-based shaping (Ng, Harada and Russell 1999), which leave the best policy as it is.

A potential Φ of states adds γ Φ(s') - Φ(s) to the reward of each step, and Φ of the state in which an episode
terminates counts as 0. The discounted sum of an episode then changes by -Φ of its first state, whatever the policy
does.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import torch

from embodyflow.references import resolve
from embodyflow.training.off_policy.replay.replay_buffer import Transitions

Potential: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
"""Function from states, float32 ``[B, S]``, to their potentials, float32 ``[B]``. It must depend on nothing else."""


class Shaping:
    """Shapes the returns of transitions when they are drawn, so the replay buffer keeps the environment's rewards.

    Args:
        reference: Potential, ``module:function``.
    """

    def __init__(self, reference: str) -> None:
        self._reference, self._potential = reference, resolve(reference)

    def shaped(self, batch: Transitions) -> Transitions:
        """Return transitions with shaped returns; those over several steps get the sum of all their steps.

        Raises:
            ValueError: The potential of the states is not one finite number each.
        """
        gain = batch.discounts * self._of(batch.next_state) - self._of(batch.state)
        return replace(batch, returns=batch.returns + gain)

    @torch.no_grad()
    def _of(self, states: torch.Tensor) -> torch.Tensor:
        values = self._potential(states)
        if not isinstance(values, torch.Tensor) or values.shape != states.shape[:1]:
            shape = tuple(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
            raise ValueError(
                f"off_policy.potential={self._reference}: gave {shape} for states of shape {tuple(states.shape)}; "
                f"allowed is a tensor of shape {tuple(states.shape[:1])}"
            )
        if not values.isfinite().all():
            raise ValueError(f"off_policy.potential={self._reference}: gave NaN or inf; allowed are finite numbers")
        return values
