"""The names and shapes of a model's weights, and checks of new weights before any of them is loaded."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy.typing as npt
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from embodyflow.policies.weight_copies import as_tensor


@dataclass(frozen=True)
class ModelWeights:
    """The specification of a causal language model's weights, under transformers' names.

    Attributes:
        shapes: Shape of every name in the model's ``state_dict``.
        canonical_names: Names of tied weights, each with the one name that stands for all of them.
        vocab_size: Size of the model's vocabulary.
        max_positions: Number of positions that the model can attend to.
    """

    shapes: Mapping[str, tuple[int, ...]]
    canonical_names: Mapping[str, str]
    vocab_size: int
    max_positions: int

    @classmethod
    def of_model(cls, model: Any) -> Self:
        """Return the specification of a transformers model."""
        return cls(
            shapes={name: tuple(tensor.shape) for name, tensor in model.state_dict().items()},
            canonical_names=dict(model.all_tied_weights_keys),
            vocab_size=model.config.vocab_size,
            max_positions=model.config.max_position_embeddings,
        )

    @classmethod
    def of_folder(cls, model_path: Path) -> Self:
        """Return the specification of the model in a Hugging Face folder without loading its weights."""
        with torch.device("meta"):
            return cls.of_model(AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model_path)))

    def check(self, weights: Mapping[str, npt.NDArray[Any]]) -> None:
        """Check that ``weights`` are exactly the model's; tied weights may have any of their names.

        Raises:
            ValueError: A name is unknown, a weight is missing, a shape differs, or tied weights have two values.
        """
        given = {self._canonical_name(name) for name in weights}
        missing = sorted({self._canonical_name(name) for name in self.shapes} - given)
        unknown = sorted(weights.keys() - self.shapes.keys())
        for problem, names in (("the model has no weights named", unknown), ("weights are missing:", missing)):
            if names:
                more = f" and {len(names) - 3} more" if len(names) > 3 else ""
                raise ValueError(f"{problem} {', '.join(names[:3])}{more}")
        for name, array in weights.items():
            if tuple(array.shape) != self.shapes[name]:
                raise ValueError(f"{name}: shape {tuple(array.shape)}; must be {self.shapes[name]}")
            canonical = self._canonical_name(name)
            if canonical != name and canonical in weights and (array != weights[canonical]).any():
                raise ValueError(f"{name} and {canonical} are tied in the model; their values must be equal")

    def by_canonical_name(self, weights: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Return the weights with each tied weight under a single name."""
        return {self._canonical_name(name): array for name, array in weights.items()}

    @torch.no_grad()
    def load(self, model: Any, weights: Mapping[str, npt.NDArray[Any]]) -> None:
        """Check the weights and copy them into a transformers model, with its dtype and on its device."""
        self.check(weights)
        state = model.state_dict()
        for name, array in weights.items():
            state[name].copy_(as_tensor(array))

    def _canonical_name(self, name: str) -> str:
        return self.canonical_names.get(name, name)
