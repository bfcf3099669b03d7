"""Check of whether a language model's matrices can be split over ranks, without torch."""

from collections.abc import Mapping
from typing import Any

from embodyflow.errors import ConfigError

FAMILIES = ("llama", "qwen2", "qwen3")
"""Architectures of transformers whose split models are tested to have a whole model's gradients."""

SIZES = ("num_attention_heads", "num_key_value_heads", "intermediate_size")
"""Sizes that must divide evenly, by their names in the model's configuration in transformers."""


def check_split(model: Mapping[str, Any], size: int) -> None:
    """Refuse a model that cannot be split.

    Args:
        model: Configuration of the model in transformers, as a mapping.
        size: Ranks to split it over; 1 leaves it whole.

    Raises:
        ConfigError: One line that names the key and what is allowed.
    """
    if size == 1:
        return
    key, family = f"trainer.tensor_parallel_size={size}", model["model_type"]
    if family not in FAMILIES:
        raise ConfigError(f"{key}: allowed is 1 with the architecture {family}; {', '.join(FAMILIES)} can be split")
    numbers = {name: model.get(name) or model["num_attention_heads"] for name in SIZES}
    if any(number % size for number in numbers.values()):
        allowed = [each for each in range(1, min(numbers.values()) + 1) if not any(n % each for n in numbers.values())]
        raise ConfigError(
            f"{key}: must divide the model's {', '.join(f'{name}={number}' for name, number in numbers.items())}; "
            f"allowed are {', '.join(map(str, allowed))}"
        )
