"""Description of a LeRobot checkpoint: its sizes, statistics and vision-language model.

A checkpoint is a folder that LeRobot's ``save_pretrained`` wrote, or such a repository of the Hugging Face hub. It
holds ``config.json``, ``model.safetensors``, ``policy_preprocessor.json`` and the statistics that the latter names.
Another checkpoint on the hub provides the vision-language model's tokenizer, and its sizes where ``config.json`` lacks
them. A model without such a checkpoint has them in ``vlm``.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from torch import Tensor

from embodyflow.errors import ConfigError
from embodyflow.policies.embodied.flow_vla.configuration_flow_vla import FlowVLAConfig, FlowVLAScratchConfig
from embodyflow.policies.embodied.flow_vla.statistics_flow_vla import Moments, Statistics
from embodyflow.policies.embodied.lerobot_processors import (
    ACTION,
    CONFIG,
    IMAGES,
    STATE,
    WEIGHTS,
    Step,
    read_statistics,
    step,
)
from embodyflow.policies.pretrained.checkpoints import checkpoint_folder, is_outline, read_json
from embodyflow.policies.pretrained.tokenizers import load_tokenizer
from embodyflow.policies.pretrained.weight_files import check_weights

VLM = "vlm"
BESIDE_WEIGHTS = ("*.json", "policy_*.safetensors")
VLM_FILES = ("config.json", "tokenizer*.json", "special_tokens_map.json")
OWN_NAMES: Mapping[str, str] = MappingProxyType({STATE: "state", ACTION: "action"})
"""Beginnings of the names of our statistics, by LeRobot's features."""
DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "type": None,
        "chunk_size": 50,
        "max_state_dim": 32,
        "max_action_dim": 32,
        "min_period": 4e-3,
        "max_period": 4.0,
    }
)
"""Defaults of the keys in a ``config.json`` of any of these policies."""


@dataclass(frozen=True)
class Description:
    """Everything about a checkpoint but its weights.

    Attributes:
        config: Content of its ``config.json``, with defaults.
        vlm: Sizes of its vision-language model, in the form of that model's ``config.json``.
        statistics: Values of the statistics' buffers, float32; may be empty.
        folder: Folder of the checkpoint; ``None`` for random weights.
        vlm_folder: Folder of the vision-language model's tokenizer; ``None`` for random weights, or if not needed.
        normalization: Kind of the statistics.
    """

    config: Mapping[str, Any]
    vlm: Mapping[str, Any]
    statistics: Mapping[str, Tensor]
    folder: Path | None
    vlm_folder: Path | None
    normalization: type[Statistics] = Moments

    def new_statistics(self) -> Statistics:
        """Return statistics that change nothing, of the policy's sizes."""
        return self.normalization(self.state_dim, self.action_dim)

    @property
    def state_dim(self) -> int:
        """S, features of a state."""
        return int(self.config["input_features"][STATE]["shape"][0])

    @property
    def action_dim(self) -> int:
        """A, dimensions of an action."""
        return int(self.config["output_features"][ACTION]["shape"][0])


class Layout(ABC):
    """Conventions of LeRobot for one kind of policy: its files, and the preparation of its inputs.

    Attributes:
        kind: LeRobot's name of the kind.
        title: Name of the kind in errors.
        defaults: Defaults of the keys in ``config.json``.
        as_published: Keys that must equal ``defaults``, as in the published models.
        statistics: Statistics that normalise states and actions.
        num_steps: Key of K, the denoising steps.
        padding: Padding of prompts, in the words of LeRobot's tokenizer step.
        centred: Whether padding surrounds an image, rather than standing above and left of it.
    """

    kind: ClassVar[str]
    title: ClassVar[str]
    defaults: ClassVar[Mapping[str, Any]]
    as_published: ClassVar[tuple[str, ...]]
    statistics: ClassVar[type[Statistics]] = Moments
    num_steps: ClassVar[str]
    padding: ClassVar[str]
    centred: ClassVar[bool]

    @abstractmethod
    def image_size(self, described: Mapping[str, Any]) -> tuple[int, int] | None:
        """Return the width and height to scale images to; ``None`` keeps their size."""

    @abstractmethod
    def vlm_name(self, described: Mapping[str, Any]) -> str:
        """Return the checkpoint of the vision-language model and tokenizer; :data:`VLM` is the folder of that name."""

    @abstractmethod
    def check(self, key: str, described: Mapping[str, Any]) -> None:
        """Run the checks of this kind of policy.

        Raises:
            ConfigError: One line that begins with the key.
        """

    @abstractmethod
    def find_vlm(
        self, key: str, config: FlowVLAConfig, folder: Path, described: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Path | None]:
        """Return ``vlm`` and ``vlm_folder`` of a checkpoint's :class:`Description`.

        Raises:
            ConfigError: They cannot be fetched, or belong to another kind of model.
        """

    @abstractmethod
    def scratch(self, scratch: Any, num_words: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the keys of this kind in ``config.json`` and ``vlm``, for a model of random weights.

        Args:
            scratch: Sizes of the model.
            num_words: Words of the tokenizer.
        """

    def preprocessing(
        self, described: Mapping[str, Any], tokenizer: Step, normalizer: Step, device: Step
    ) -> list[Step]:
        """Return LeRobot's steps between the batch and the model, in their order.

        Args:
            described: Content of ``config.json``.
            tokenizer: Step that makes tokens of the instruction.
            normalizer: Step that normalises states and actions.
            device: Step that moves everything to a device.
        """
        return [step(f"{self.kind}_new_line_processor"), tokenizer, device, normalizer]

    def export_weights(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Return the weights under the names that LeRobot expects."""
        return dict(weights)


def read_checkpoint(layout: Layout, config: FlowVLAConfig, *, weights: bool) -> Description:
    """Read a checkpoint's description, from the hub where ``policy.path`` is no folder.

    Args:
        layout: Layout of the kind of policy.
        config: Configuration with ``path``.
        weights: Whether to fetch the weights too.

    Raises:
        ConfigError: It cannot be fetched, is of another kind, or contradicts the configuration; one line with the key.
    """
    assert config.path is not None
    key = f"policy.path={config.path}"
    folder = checkpoint_folder(config.path, [*BESIDE_WEIGHTS, WEIGHTS, f"{VLM}/*"] if weights else BESIDE_WEIGHTS, key)
    found = read_json(folder / CONFIG)
    if found.get("type") != layout.kind:
        problem = f"its type is {found.get('type')!r}" if found else f"it has no {CONFIG}"
        raise ConfigError(f"{key}: must hold LeRobot's {layout.title} (type {layout.kind!r}); {problem}")
    described = {**layout.defaults, "normalization_mapping": layout.statistics.mapping(), **found}
    _check_kind(layout, key, described)
    statistics = {}
    if config.normalization == "checkpoint":
        _check_sizes(config, described)
        statistics = _statistics(layout, key, config, folder)
    else:
        described |= _features(layout, config, described)
    if config.chunk_size > described["chunk_size"]:
        raise ConfigError(f"policy.chunk_size={config.chunk_size}: the checkpoint's is {described['chunk_size']}")
    vlm, tokenizer_folder = layout.find_vlm(key, config, folder, described)
    return Description(described, vlm, statistics, folder, tokenizer_folder, layout.statistics)


def describe(layout: Layout, config: FlowVLAConfig) -> tuple[Description, Any]:
    """Return a model's description and its ``transformers`` tokenizer; weights are fetched but not read.

    Within ``torch.device("meta")`` they are not fetched.

    Raises:
        ConfigError: See :func:`read_checkpoint`.
    """
    if config.scratch is None:
        description = read_checkpoint(layout, config, weights=not is_outline())
        return description, load_tokenizer(config, description.vlm_folder)
    tokenizer = load_tokenizer(config, None)
    own, vlm = layout.scratch(config.scratch, len(tokenizer))
    described = {**layout.defaults, "type": layout.kind, "chunk_size": config.chunk_size, **own}
    described |= {key: getattr(config.scratch, key) for key in ("max_state_dim", "max_action_dim")}
    described |= _features(layout, config, described)
    return Description(described, vlm, {}, None, None, layout.statistics), tokenizer


def check_checkpoint(layout: Layout, config: FlowVLAConfig) -> None:
    """Refuse a checkpoint that the policy cannot load, without reading weights.

    Raises:
        ConfigError: One line that names the key and what is allowed.
    """
    if config.path is None:
        return
    folder = read_checkpoint(layout, config, weights=False).folder
    if Path(config.path).is_dir():
        check_weights(Path(config.path), f"policy.path={folder}")


def vision_sizes(scratch: FlowVLAScratchConfig) -> dict[str, int]:
    """Return the sizes of a vision tower of random weights, in the form of its ``config.json``."""
    return {
        "hidden_size": scratch.vision_hidden_size,
        "intermediate_size": 2 * scratch.vision_hidden_size,
        "num_hidden_layers": scratch.num_vision_layers,
        "num_attention_heads": scratch.num_attention_heads,
        "image_size": scratch.image_size,
        "patch_size": scratch.patch_size,
    }


def text_sizes(scratch: FlowVLAScratchConfig, num_words: int) -> dict[str, int]:
    """Return the sizes of a language model of random weights likewise, without those of its heads."""
    return {
        "vocab_size": num_words,
        "hidden_size": scratch.hidden_size,
        "intermediate_size": scratch.intermediate_size,
        "num_hidden_layers": scratch.num_layers,
        "num_attention_heads": scratch.num_attention_heads,
        "num_key_value_heads": scratch.num_key_value_heads,
    }


def vlm_folder(key: str, folder: Path, name: str) -> Path:
    """Return the folder that describes a checkpoint's vision-language model.

    Args:
        key: Key and value that name the checkpoint, for the error.
        folder: Folder of the checkpoint.
        name: Name of the vision-language model's own checkpoint.

    Raises:
        ConfigError: There is no such folder, and the hub has none.
    """
    within = folder / VLM
    if (within / CONFIG).exists():
        return within
    return checkpoint_folder(name, VLM_FILES, f"{key}: its vision-language model {name}")


def _features(layout: Layout, config: FlowVLAConfig, described: Mapping[str, Any]) -> dict[str, Any]:
    """Return inputs and outputs of the configuration's sizes, in the form of ``config.json``."""
    width, height = layout.image_size(described) or (256, 256)
    images = {f"{IMAGES}{camera}": {"type": "VISUAL", "shape": [3, height, width]} for camera in config.cameras}
    return {
        "input_features": {STATE: {"type": "STATE", "shape": [config.state_dim]}, **images},
        "output_features": {ACTION: {"type": "ACTION", "shape": [config.action_dim]}},
        "normalization_mapping": layout.statistics.mapping(),
    }


def _check_kind(layout: Layout, key: str, described: Mapping[str, Any]) -> None:
    for name in layout.as_published:
        if described[name] != layout.defaults[name]:
            raise ConfigError(f"{key}: its {name} is {described[name]!r}; allowed is {layout.defaults[name]!r}")
    layout.check(key, described)
    mapping = described["normalization_mapping"]
    if not isinstance(mapping, dict):
        raise ConfigError(f"{key}: its normalization_mapping is {mapping!r}; allowed is an object")
    for name, mode in layout.statistics.mapping().items():
        # LeRobot leaves features as they are that the mapping lacks.
        if mapping.get(name, "IDENTITY") != mode:
            raise ConfigError(f"{key}: its normalization_mapping must have {name}: {mode}")


def _check_sizes(config: FlowVLAConfig, described: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of other sizes than the configuration's.

    Raises:
        ConfigError: One line that names key and size.
    """
    features = {**described.get("input_features", {}), **described.get("output_features", {})}
    for key, name in (("state_dim", STATE), ("action_dim", ACTION)):
        size = features[name]["shape"][0] if name in features else "no size in its config.json"
        if getattr(config, key) != size:
            raise ConfigError(f"policy.{key}={getattr(config, key)}: the checkpoint's {name} has {size}")
    images = [name for name in features if name.startswith(IMAGES)]
    if len(config.cameras) > len(images):
        raise ConfigError(f"policy.cameras={list(config.cameras)}: the checkpoint has only {', '.join(images)}")
    names = [name.removeprefix(IMAGES) for name in images]
    places = [names.index(camera) for camera in config.cameras if camera in names]
    if places != sorted(places):
        raise ConfigError(
            f"policy.cameras={list(config.cameras)}: the checkpoint reads {', '.join(names)}, and in this order"
        )


def _statistics(layout: Layout, key: str, config: FlowVLAConfig, folder: Path) -> dict[str, Tensor]:
    """Return the statistics, float32, by the names of :class:`Description`.

    Raises:
        ConfigError: See :func:`~embodyflow.policies.embodied.lerobot_processors.read_statistics`.
    """
    kinds, sizes = layout.statistics.kinds, {STATE: config.state_dim, ACTION: config.action_dim}
    found = read_statistics(key, folder, sizes, kinds)
    return {f"{own}_{kind}": found[f"{name}.{kind}"] for name, own in OWN_NAMES.items() for kind in kinds}
