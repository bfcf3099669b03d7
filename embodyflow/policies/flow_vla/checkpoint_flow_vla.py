"""What stands beside the weights in LeRobot's folders: sizes, statistics, and what the vision-language model is like.

A checkpoint is a folder that LeRobot's ``save_pretrained`` has written, or such a repository of the Hugging Face hub:
``config.json``, ``model.safetensors``, ``policy_preprocessor.json`` and the statistics that it names. The
vision-language model's tokenizer, and its sizes where ``config.json`` does not say them, are those of another
checkpoint; where that is none of the hub's they lie in ``vlm``.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from safetensors.torch import load_file
from torch import Tensor

from embodyflow.errors import ConfigError
from embodyflow.policies.checkpoints import checkpoint_folder, read_json
from embodyflow.policies.flow_vla.configuration_flow_vla import FlowVLAConfig, FlowVLAScratchConfig
from embodyflow.policies.tokenizers import load_tokenizer

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
        "min_period": 4e-3,
        "max_period": 4.0,
    }
)
"""What a ``config.json`` of any of these policies means that does not say it."""


@dataclass(frozen=True)
class Description:
    """Everything about a checkpoint but its weights.

    Attributes:
        config: its ``config.json``, defaults included.
        vlm: the sizes of its vision-language model, as that one's ``config.json`` has them.
        statistics: ``state_mean``, ``state_std``, ``action_mean``, ``action_std``, float32; empty where there are none.
        folder: where it lies; ``None`` for random weights.
        vlm_folder: where the vision-language model's tokenizer lies; ``None`` likewise, or where it is not needed.
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


class Layout(ABC):
    """How LeRobot lays out, and feeds, one kind of policy.

    Attributes:
        kind: LeRobot's name of it.
        title: how an error calls it.
        defaults: what its ``config.json`` means that does not say it.
        as_published: keys that must be as in ``defaults``, as they are in the published models.
        num_steps: the key of K, the denoising steps.
        padding: of prompts, as LeRobot's tokenizer step has it.
        centred: images lie in the middle of what they are padded to.
    """

    kind: ClassVar[str]
    title: ClassVar[str]
    defaults: ClassVar[Mapping[str, Any]]
    as_published: ClassVar[tuple[str, ...]]
    num_steps: ClassVar[str]
    padding: ClassVar[str]
    centred: ClassVar[bool]

    @abstractmethod
    def image_size(self, described: Mapping[str, Any]) -> tuple[int, int] | None:
        """Return width and height that images are brought to; ``None`` leaves them."""

    @abstractmethod
    def vlm_name(self, described: Mapping[str, Any]) -> str:
        """Return the checkpoint whose vision-language model and tokenizer it has; :data:`VLM` is the folder within."""

    @abstractmethod
    def check(self, key: str, described: Mapping[str, Any]) -> None:
        """Refuse what else cannot be.

        Raises:
            ConfigError: one line that begins with the key and names what it is.
        """

    @abstractmethod
    def find_vlm(
        self, key: str, config: FlowVLAConfig, folder: Path, described: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Path | None]:
        """Return ``vlm`` and ``vlm_folder`` of a checkpoint's :class:`Description`.

        Raises:
            ConfigError: they cannot be had, or are another model's.
        """

    @abstractmethod
    def scratch(self, scratch: Any, num_words: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what ``config.json`` and ``vlm`` say of a model of random weights beside what all say.

        Args:
            scratch: its sizes.
            num_words: of the tokenizer.
        """

    def exported(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Return the weights under the names that LeRobot asks for, of those under ours."""
        return dict(weights)


def read_checkpoint(layout: Layout, config: FlowVLAConfig, *, weights: bool) -> Description:
    """Read a checkpoint's description, fetched from the hub where ``policy.path`` is no folder.

    Args:
        layout: of its kind.
        config: with ``path``.
        weights: fetch the weights too.

    Raises:
        ConfigError: it cannot be had, is of another kind, or not one of this configuration; one line with the key.
    """
    assert config.path is not None
    key = f"policy.path={config.path}"
    folder = checkpoint_folder(config.path, [*BESIDE_WEIGHTS, WEIGHTS, f"{VLM}/*"] if weights else BESIDE_WEIGHTS, key)
    found = read_json(folder / CONFIG)
    if found.get("type") != layout.kind:
        problem = f"its type is {found.get('type')!r}" if found else f"it has no {CONFIG}"
        raise ConfigError(f"{key}: must hold LeRobot's {layout.title} (type {layout.kind!r}); {problem}")
    described = {**layout.defaults, **found}
    _check_kind(layout, key, described)
    statistics = {}
    if config.normalization == "checkpoint":
        statistics = _statistics(key, folder)
        _check_sizes(config, described)
    else:
        described |= _features(layout, config, described)
    if config.chunk_size > described["chunk_size"]:
        raise ConfigError(f"policy.chunk_size={config.chunk_size}: the checkpoint's is {described['chunk_size']}")
    vlm, vlm_lies = layout.find_vlm(key, config, folder, described)
    return Description(described, vlm, statistics, folder, vlm_lies)


def describe(layout: Layout, config: FlowVLAConfig) -> tuple[Description, Any]:
    """Return a model's description and its tokenizer, of ``transformers``; weights are fetched, not read.

    Raises:
        ConfigError: see :func:`read_checkpoint`.
    """
    if config.scratch is None:
        description = read_checkpoint(layout, config, weights=True)
        return description, load_tokenizer(config, description.vlm_folder)
    tokenizer = load_tokenizer(config, None)
    own, vlm = layout.scratch(config.scratch, len(tokenizer))
    described = {**layout.defaults, "type": layout.kind, "chunk_size": config.chunk_size, **own}
    described |= {key: getattr(config.scratch, key) for key in ("max_state_dim", "max_action_dim")}
    return Description(described | _features(layout, config, described), vlm, {}, None, None), tokenizer


def check_checkpoint(layout: Layout, config: FlowVLAConfig) -> None:
    """Refuse a checkpoint that the policy cannot be, without reading weights.

    Raises:
        ConfigError: one line that names the key and what is allowed.
    """
    if config.path is None:
        return
    folder = read_checkpoint(layout, config, weights=False).folder
    if Path(config.path).is_dir() and not (Path(config.path) / WEIGHTS).exists():
        raise ConfigError(f"policy.path={folder}: has no {WEIGHTS}")


def vision_sizes(scratch: FlowVLAScratchConfig) -> dict[str, int]:
    """Return the sizes of the vision tower of a model of random weights, as its ``config.json`` has them."""
    return {
        "hidden_size": scratch.vision_hidden_size,
        "intermediate_size": 2 * scratch.vision_hidden_size,
        "num_hidden_layers": scratch.num_vision_layers,
        "num_attention_heads": scratch.num_attention_heads,
        "image_size": scratch.image_size,
        "patch_size": scratch.patch_size,
    }


def text_sizes(scratch: FlowVLAScratchConfig, num_words: int) -> dict[str, int]:
    """Return the sizes of the language model of a model of random weights, likewise, but those of its heads."""
    return {
        "vocab_size": num_words,
        "hidden_size": scratch.hidden_size,
        "intermediate_size": scratch.intermediate_size,
        "num_hidden_layers": scratch.num_layers,
        "num_attention_heads": scratch.num_attention_heads,
        "num_key_value_heads": scratch.num_key_value_heads,
    }


def vlm_folder(key: str, folder: Path, name: str) -> Path:
    """Return where a checkpoint's vision-language model is described.

    Args:
        key: that names the checkpoint, as the error says it.
        folder: of the checkpoint.
        name: of the vision-language model's own checkpoint.

    Raises:
        ConfigError: nowhere.
    """
    within = folder / VLM
    if (within / CONFIG).exists():
        return within
    return checkpoint_folder(name, VLM_FILES, f"{key}: its vision-language model {name}")


def _features(layout: Layout, config: FlowVLAConfig, described: Mapping[str, Any]) -> dict[str, Any]:
    """Return what goes in and out, as a ``config.json`` has it, of the configuration's sizes."""
    width, height = layout.image_size(described) or (256, 256)
    images = {f"{IMAGES}{camera}": {"type": "VISUAL", "shape": [3, height, width]} for camera in config.cameras}
    return {
        "input_features": {STATE: {"type": "STATE", "shape": [config.state_dim]}, **images},
        "output_features": {ACTION: {"type": "ACTION", "shape": [config.action_dim]}},
        "normalization_mapping": dict(STANDARDISED),
    }


def _check_kind(layout: Layout, key: str, described: Mapping[str, Any]) -> None:
    for name in layout.as_published:
        if described[name] != layout.defaults[name]:
            raise ConfigError(f"{key}: its {name} is {described[name]!r}; allowed is {layout.defaults[name]!r}")
    layout.check(key, described)
    for name, mode in STANDARDISED.items():
        if described["normalization_mapping"].get(name, mode) != mode:
            raise ConfigError(f"{key}: its normalization_mapping must have {name}: {mode}")


def _check_sizes(config: FlowVLAConfig, described: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of other sizes than the configuration's.

    Raises:
        ConfigError: one line that names key and size.
    """
    features = {**described.get("input_features", {}), **described.get("output_features", {})}
    for key, name in (("state_dim", STATE), ("action_dim", ACTION)):
        size = features[name]["shape"][0] if name in features else "no size in its config.json"
        if getattr(config, key) != size:
            raise ConfigError(f"policy.{key}={getattr(config, key)}: the checkpoint's {name} has {size}")
    images = [name for name in features if name.startswith(IMAGES)]
    if len(config.cameras) > len(images):
        raise ConfigError(f"policy.cameras={list(config.cameras)}: the checkpoint sees {', '.join(images)} alone")


def _statistics(key: str, folder: Path) -> dict[str, Tensor]:
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
