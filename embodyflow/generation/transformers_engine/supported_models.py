"""Models that the transformers engine generates with."""

from typing import Any

from embodyflow.errors import ConfigError
from embodyflow.policies.language.causal_lm.windows_causal_lm import windows_of


def check_model(config: Any) -> None:
    """Check that the transformers engine can generate with a model.

    Args:
        config: Configuration of the model in transformers.

    Raises:
        ConfigError: It cannot; the message names the reason and the engine that may.
    """
    try:
        windows_of(config)
        if getattr(config, "num_kv_shared_layers", 0):
            raise ConfigError(f"{config.model_type} has layers that share keys and values; allowed are layers without")
    except ConfigError as error:
        raise ConfigError(f"rollout.generation.name=hf: {error} (rollout.generation.name=vllm serves others)") from None
