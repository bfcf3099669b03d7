"""The weights that a model has, by transformers' names, and new ones for it, checked before any is changed."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy.typing as npt
import torch
from transformers import AutoConfig, AutoModelForCausalLM


@dataclass(frozen=True)
class ModelWeights:
    """What a causal language model's weights must be.

    Attributes:
        shapes: of every name in its ``state_dict``.
        first_names: for a name that is tied to another, the other one.
        vocab_size: of the model.
        max_positions: tokens that it can attend to.
    """

    shapes: Mapping[str, tuple[int, ...]]
    first_names: Mapping[str, str]
    vocab_size: int
    max_positions: int

    @classmethod
    def of_model(cls, model: Any) -> Self:
        """Return those of a transformers model."""
        return cls(
            shapes={name: tuple(tensor.shape) for name, tensor in model.state_dict().items()},
            first_names=dict(model.all_tied_weights_keys),
            vocab_size=model.config.vocab_size,
            max_positions=model.config.max_position_embeddings,
        )

    @classmethod
    def of_folder(cls, model_path: Path) -> Self:
        """Return those of the model in a Hugging Face folder, which is not loaded."""
        with torch.device("meta"):
            return cls.of_model(AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model_path)))

    def check(self, weights: Mapping[str, npt.NDArray[Any]]) -> None:
        """Check that ``weights`` are all of the model's and no others; of tied ones any will do.

        Raises:
            ValueError: an unknown name, a missing weight, another shape, or two values for one weight.
        """
        given = {self._first_name(name) for name in weights}
        missing = sorted({self._first_name(name) for name in self.shapes} - given)
        unknown = sorted(weights.keys() - self.shapes.keys())
        for what, names in (("the model has no weights named", unknown), ("weights are missing:", missing)):
            if names:
                more = f" and {len(names) - 3} more" if len(names) > 3 else ""
                raise ValueError(f"{what} {', '.join(names[:3])}{more}")
        for name, array in weights.items():
            if tuple(array.shape) != self.shapes[name]:
                raise ValueError(f"{name}: shape {tuple(array.shape)}, the model's is {self.shapes[name]}")
            first = self._first_name(name)
            if first != name and first in weights and (array != weights[first]).any():
                raise ValueError(f"{name} and {first} are tied in the model and have different values")

    def by_first_name(self, weights: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Return the weights with one name each."""
        return {self._first_name(name): array for name, array in weights.items()}

    @torch.no_grad()
    def load(self, model: Any, weights: Mapping[str, npt.NDArray[Any]]) -> None:
        """Copy weights into the transformers model, in its dtype and on its device, after :meth:`check`."""
        self.check(weights)
        state = model.state_dict()
        for name, array in weights.items():
            state[name].copy_(torch.tensor(array))  # a copy, as arrays in shared memory may be read-only

    def _first_name(self, name: str) -> str:
        return self.first_names.get(name, name)
