"""A model with its optimizer: what every trainer keeps in a checkpoint."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor
from torch.profiler import record_function

from embodyflow.config.trainer import TrainerConfig


class TrainedModel:
    """A model with its AdamW optimizer, sharded or not.

    Args:
        model: Model to train.
        learning_rate: Full learning rate.
        config: Other settings of the optimizer.
        betas: Decay rates of the optimizer's two moments.

    Attributes:
        model: The model.
        parameters: Its parameters that are trained.
        optimizer: Their optimizer.
    """

    def __init__(
        self,
        model: nn.Module,
        learning_rate: float,
        config: TrainerConfig,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        self.model = model
        self._learning_rate, self._config, self._betas = learning_rate, config, betas
        self.restart()

    def restart(self) -> None:
        """Reset the optimizer's moments and its step count."""
        self.parameters = [value for value in self.model.parameters() if value.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=self._learning_rate,
            betas=self._betas,
            weight_decay=self._config.weight_decay,
            eps=self._config.adam_epsilon,
            fused=True,
        )
        # Without moments, torch.distributed.checkpoint initialises the state by a step of length zero, which AdamW
        # would count.
        for parameter in self.parameters:
            self.optimizer.state[parameter] = {
                "step": torch.zeros((), device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        self._gather_state()

    def _gather_state(self) -> None:
        """Gather the optimizer's state in the lists that each step takes, since it changes in place from here on."""
        self._is_sharded = any(isinstance(parameter, DTensor) for parameter in self.parameters)
        states = [self.optimizer.state[parameter] for parameter in self.parameters]
        self._steps, self._means, self._squares = (
            [state[name] for state in states] for name in ("step", "exp_avg", "exp_avg_sq")
        )

    def step(self) -> None:
        """Take an optimizer step with the parameters' gradients.

        It equals the optimizer's own ``step`` bit by bit. The preparations of that one take longer than the arithmetic
        of a small model. It still steps models that are sharded, or have parameters without a gradient.
        """
        gradients = [each.grad for each in self.parameters if each.grad is not None]
        if self._is_sharded or len(gradients) < len(self.parameters):
            self.optimizer.step()
            return
        (group,) = self.optimizer.param_groups
        parameters: list[torch.Tensor] = [*self.parameters]
        with torch.no_grad(), record_function("Optimizer.step#AdamW.step"):  # the optimizer's own name in a profile
            torch._foreach_add_(self._steps, 1)
            torch._fused_adamw_(
                parameters,
                gradients,
                self._means,
                self._squares,
                [],
                self._steps,
                lr=group["lr"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
            )

    def state_dict(self) -> dict[str, Any]:
        """Return trained weights and moments in the form that torch.distributed.checkpoint writes and reads in place.

        Frozen weights are left out.
        """
        model, optimizer = get_state_dict(self.model, self.optimizer)
        parameters = self.model.named_parameters(remove_duplicate=False)  # a tied weight has two names
        frozen = {name for name, value in parameters if not value.requires_grad}
        return {"model": {n: value for n, value in model.items() if n not in frozen}, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load weights and moments that :meth:`state_dict` returned."""
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=StateDictOptions(strict=False),  # the state has no frozen weights
        )
        self._gather_state()

    def set_rate(self, rate: float) -> None:
        """Train at this fraction of the full learning rate from now on."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate * self._learning_rate


def release_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Release the memory of gradients, 4 bytes per parameter."""
    for parameter in parameters:
        parameter.grad = None
