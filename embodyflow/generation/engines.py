"""Building the generation engine of a configuration."""

from pathlib import Path
from typing import assert_never

from embodyflow.config.generation import GenerationConfig, HFConfig, RemoteConfig, VLLMConfig
from embodyflow.generation.interface import GenerationEngine


def build_generation_engine(config: GenerationConfig, model_path: Path, device: str) -> GenerationEngine:
    """Build the engine, importing only the library that it needs.

    Args:
        config: Engine configuration; its class selects the engine.
        model_path: Hugging Face folder with ``config.json``, tokenizer and safetensors.
        device: ``cpu`` or ``cuda``; a remote engine ignores it.

    Raises:
        ConfigError: The engine cannot serve this model, or its library is not installed.
        GenerationError: The engine did not start.
    """
    match config:
        case HFConfig():
            from embodyflow.generation.transformers_engine.engine import HFEngine

            return HFEngine(config, model_path, device)
        case VLLMConfig():
            from embodyflow.generation.vllm import VLLMEngine

            return VLLMEngine(config, model_path, device)
        case RemoteConfig():
            from embodyflow.generation.remote import RemoteEngine

            return RemoteEngine(config, model_path)
        case _:
            assert_never(config)
