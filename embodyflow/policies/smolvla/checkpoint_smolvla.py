"""What stands beside the weights of a SmolVLA: sizes, statistics, and the vision-language model's own description.

A checkpoint is a folder that LeRobot's ``save_pretrained`` has written, or a repository of the Hugging Face hub, as
https://huggingface.co/HuggingFaceVLA/smolvla_libero: ``config.json``, ``model.safetensors``,
``policy_preprocessor.json`` and the statistics that it names. Sizes of the vision-language model and its tokenizer are
those of another checkpoint, ``vlm_model_name`` of ``config.json``; where that is none of the hub's they lie in ``vlm``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from safetensors.torch import load_file
from torch import Tensor
from transformers import SmolVLMConfig

from embodyflow.errors import ConfigError
from embodyflow.policies.checkpoints import checkpoint_folder, read_json
from embodyflow.policies.smolvla.configuration_smolvla import SmolVLAConfig

CONFIG, WEIGHTS, PREPROCESSING = "config.json", "model.safetensors", "policy_preprocessor.json"
VLM = "vlm"
BESIDE_WEIGHTS = ("*.json", "policy_*.safetensors")
VLM_FILES = ("config.json", "tokenizer*.json", "special_tokens_map.json")
STATE, ACTION, IMAGES = "observation.state", "action", "observation.images."
STANDARDISED: Mapping[str, str] = MappingProxyType({"STATE": "MEAN_STD", "ACTION": "MEAN_STD", "VISUAL": "IDENTITY"})
DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "type": None,
        "normalization_mapping": dict(STANDARDISED),
        "chunk_size": 50,
        "max_state_dim": 32,
        "max_action_dim": 32,
        "resize_imgs_with_padding": [512, 512],
        "adapt_to_pi_aloha": False,
        "add_image_special_tokens": False,
        "attention_mode": "cross_attn",
        "num_expert_layers": -1,
        "num_vlm_layers": 16,
        "self_attn_every_n_layers": 2,
        "expert_width_multiplier": 0.75,
        "min_period": 4e-3,
        "max_period": 4.0,
        "vlm_model_name": "HuggingFaceTB/SmolVLM2-500M-Video-Instruct",
    }
)
"""What a ``config.json`` means that does not say it."""
AS_PUBLISHED = ("adapt_to_pi_aloha", "add_image_special_tokens", "attention_mode")
"""What must be as it is in the published models."""


@dataclass(frozen=True)
class Description:
    """Everything about a checkpoint but its weights.

    Attributes:
        config: its ``config.json``, defaults included.
        vlm: the ``config.json`` of its vision-language model.
        statistics: ``state_mean``, ``state_std``, ``action_mean``, ``action_std``, float32; empty where there are none.
        folder: where it lies; ``None`` for random weights.
        vlm_folder: where the vision-language model's tokenizer lies; ``None`` likewise.
    """

    config: Mapping[str, Any]
    vlm: Mapping[str, Any]
    statistics: Mapping[str, Tensor]
    folder: Path | None
    vlm_folder: Path | None

    @property
    def state_dim(self) -> int:
        """S, features of a state."""
        return int(self.config["input_features"][STATE]["shape"][0])

    @property
    def action_dim(self) -> int:
        """A, dimensions of an action."""
        return int(self.config["output_features"][ACTION]["shape"][0])

    def vlm_config(self) -> SmolVLMConfig:
        """Return the sizes of the vision-language model, of which only the first layers are used."""
        parts = {name: dict(self.vlm[name]) for name in ("text_config", "vision_config")}
        config = SmolVLMConfig(**parts, scale_factor=self.vlm["scale_factor"])
        if self.config["num_vlm_layers"] > 0:
            config.text_config.num_hidden_layers = self.config["num_vlm_layers"]
        return config


def read_checkpoint(config: SmolVLAConfig, *, weights: bool) -> Description:
    """Read a checkpoint's description, fetched from the hub where ``policy.path`` is no folder.

    Args:
        config: with ``path``.
        weights: fetch the weights too.

    Raises:
        ConfigError: it cannot be had, it is no SmolVLA, or not one of this configuration; one line that names the key.
    """
    assert config.path is not None
    key = f"policy.path={config.path}"
    folder = checkpoint_folder(config.path, [*BESIDE_WEIGHTS, WEIGHTS, f"{VLM}/*"] if weights else BESIDE_WEIGHTS, key)
    found = read_json(folder / CONFIG)
    if found.get("type") != "smolvla":
        problem = f"its type is {found.get('type')!r}" if found else f"it has no {CONFIG}"
        raise ConfigError(f"{key}: must hold LeRobot's SmolVLA (type 'smolvla'); {problem}")
    described = {**DEFAULTS, **found}
    _check_kind(key, described)
    statistics = {}
    if config.normalization == "checkpoint":
        statistics = _statistics(key, folder, described)
        _check_sizes(config, described)
    else:
        described |= _features(config, described)
    if config.chunk_size > described["chunk_size"]:
        raise ConfigError(f"policy.chunk_size={config.chunk_size}: the checkpoint's is {described['chunk_size']}")
    vlm_folder = _vlm_folder(key, folder, described)
    return Description(described, read_json(vlm_folder / CONFIG), statistics, folder, vlm_folder)


def describe_scratch(config: SmolVLAConfig, num_words: int) -> Description:
    """Describe a model of random weights as a checkpoint would be.

    Args:
        config: with ``scratch``.
        num_words: of the tokenizer.
    """
    scratch = config.scratch
    assert scratch is not None
    described = {
        **DEFAULTS,
        "type": "smolvla",
        "chunk_size": config.chunk_size,
        "max_state_dim": scratch.max_state_dim,
        "max_action_dim": scratch.max_action_dim,
        "resize_imgs_with_padding": [scratch.image_size, scratch.image_size],
        "num_vlm_layers": scratch.num_layers,
        "vlm_model_name": VLM,
    }
    text = {
        "model_type": "llama",
        "vocab_size": num_words,
        "hidden_size": scratch.hidden_size,
        "intermediate_size": scratch.intermediate_size,
        "num_hidden_layers": scratch.num_layers,
        "num_attention_heads": scratch.num_attention_heads,
        "num_key_value_heads": scratch.num_key_value_heads,
        "head_dim": scratch.hidden_size // scratch.num_attention_heads,
        "rms_norm_eps": 1e-5,
    }
    vision = {
        "model_type": "smolvlm_vision",
        "hidden_size": scratch.vision_hidden_size,
        "intermediate_size": 2 * scratch.vision_hidden_size,
        "num_hidden_layers": scratch.num_vision_layers,
        "num_attention_heads": scratch.num_attention_heads,
        "image_size": scratch.image_size,
        "patch_size": scratch.patch_size,
    }
    vlm = {
        "model_type": "smolvlm",
        "architectures": ["SmolVLMForConditionalGeneration"],
        "scale_factor": scratch.pixel_shuffle,
        "image_token_id": 1,
        "pad_token_id": 0,
        "text_config": text,
        "vision_config": vision,
    }
    return Description(described | _features(config, described), vlm, {}, None, None)


def check_checkpoint(config: SmolVLAConfig) -> None:
    """Refuse a checkpoint that the policy cannot be, without reading weights.

    Raises:
        ConfigError: one line that names the key and what is allowed.
    """
    if config.path is None:
        return
    folder = read_checkpoint(config, weights=False).folder
    if Path(config.path).is_dir() and not (Path(config.path) / WEIGHTS).exists():
        raise ConfigError(f"policy.path={folder}: has no {WEIGHTS}")


def _features(config: SmolVLAConfig, described: Mapping[str, Any]) -> dict[str, Any]:
    """Return what goes in and out, as a ``config.json`` has it, of the configuration's sizes."""
    width, height = described["resize_imgs_with_padding"] or (256, 256)
    images = {f"{IMAGES}{camera}": {"type": "VISUAL", "shape": [3, height, width]} for camera in config.cameras}
    return {
        "input_features": {STATE: {"type": "STATE", "shape": [config.state_dim]}, **images},
        "output_features": {ACTION: {"type": "ACTION", "shape": [config.action_dim]}},
        "normalization_mapping": dict(STANDARDISED),
    }


def _check_kind(key: str, described: Mapping[str, Any]) -> None:
    for name in AS_PUBLISHED:
        if described[name] != DEFAULTS[name]:
            raise ConfigError(f"{key}: its {name} is {described[name]!r}; allowed is {DEFAULTS[name]!r}")
    if described["num_expert_layers"] not in (-1, 0, described["num_vlm_layers"]):
        raise ConfigError(f"{key}: its expert must have as many layers as its language model")
    for name, mode in STANDARDISED.items():
        if described["normalization_mapping"].get(name, mode) != mode:
            raise ConfigError(f"{key}: its normalization_mapping must have {name}: {mode}")


def _check_sizes(config: SmolVLAConfig, described: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of other sizes than the configuration's.

    Raises:
        ConfigError: one line that names key and size.
    """
    features = {**described["input_features"], **described["output_features"]}
    for key, name in (("state_dim", STATE), ("action_dim", ACTION)):
        size = features[name]["shape"][0]
        if getattr(config, key) != size:
            raise ConfigError(f"policy.{key}={getattr(config, key)}: the checkpoint's {name} has {size}")
    images = [name for name in features if name.startswith(IMAGES)]
    if len(config.cameras) > len(images):
        raise ConfigError(f"policy.cameras={list(config.cameras)}: the checkpoint sees {', '.join(images)} alone")


def _statistics(key: str, folder: Path, described: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the statistics, float32, by the names of :class:`Description`.

    Raises:
        ConfigError: there are none.
    """
    steps = read_json(folder / PREPROCESSING).get("steps", [])
    files = [step.get("state_file") for step in steps if step.get("registry_name") == "normalizer_processor"]
    state = load_file(folder / files[0]) if files and files[0] else {}
    names = {f"{STATE}.{kind}": f"state_{kind}" for kind in ("mean", "std")}
    names |= {f"{ACTION}.{kind}": f"action_{kind}" for kind in ("mean", "std")}
    missing = [name for name in names if name not in state]
    if missing:
        raise ConfigError(
            f"{key}: its {PREPROCESSING} has no {missing[0]}; set policy.normalization=demonstrations, or have LeRobot "
            "migrate it (lerobot.processor.migrate_policy_normalization)"
        )
    return {ours: state[theirs].float() for theirs, ours in names.items()}


def _vlm_folder(key: str, folder: Path, described: Mapping[str, Any]) -> Path:
    name, found = described["vlm_model_name"], folder / VLM
    if not (found / CONFIG).exists():
        found = checkpoint_folder(name, VLM_FILES, f"{key}: its vision-language model {name}")
    kind = read_json(found / CONFIG).get("model_type")
    if kind not in ("smolvlm", "idefics3"):
        raise ConfigError(f"{key}: its vision-language model {name} must be a SmolVLM; its model_type is {kind!r}")
    return found
