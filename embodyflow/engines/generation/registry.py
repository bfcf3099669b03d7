"""Which generation engine a configuration means."""

from pathlib import Path

from embodyflow.engines.generation.configuration import GenerationConfig, HFConfig
from embodyflow.engines.generation.interface import GenerationEngine
from embodyflow.errors import ConfigError


def build_generation_engine(config: GenerationConfig, model_path: Path, device: str) -> GenerationEngine:
    """Build the engine; only what it needs is imported.

    Args:
        config: tells the engines apart.
        model_path: Hugging Face folder: ``config.json``, tokenizer, safetensors.
        device: ``cpu`` or ``cuda``; a remote server has its own.

    Raises:
        ConfigError: the engine cannot serve this model, or its library is not installed.
        GenerationError: it did not start.
    """
    match config:
        case HFConfig():
            from embodyflow.engines.generation.hf import HFEngine

            return HFEngine(config, model_path, device)
        case _:
            raise ConfigError(f"name={config.name}: allowed so far is hf")
