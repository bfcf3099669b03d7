"""LeRobot's layout of SmolVLA, as in https://huggingface.co/HuggingFaceVLA/smolvla_libero.

Sizes and tokenizer of the vision-language model are those of ``vlm_model_name`` in ``config.json``.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from transformers import SmolVLMConfig

from embodyflow.errors import ConfigError
from embodyflow.policies.embodied.flow_vla import checkpoint_flow_vla
from embodyflow.policies.embodied.flow_vla.checkpoint_flow_vla import (
    VLM,
    Description,
    Layout,
    text_sizes,
    vision_sizes,
    vlm_folder,
)
from embodyflow.policies.embodied.flow_vla.configuration_flow_vla import FlowVLAConfig
from embodyflow.policies.embodied.lerobot_processors import CONFIG
from embodyflow.policies.embodied.smolvla.configuration_smolvla import SmolVLAScratchConfig
from embodyflow.policies.pretrained.checkpoints import read_json

DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        **checkpoint_flow_vla.DEFAULTS,
        "resize_imgs_with_padding": [512, 512],
        "adapt_to_pi_aloha": False,
        "add_image_special_tokens": False,
        "attention_mode": "cross_attn",
        "num_expert_layers": -1,
        "num_vlm_layers": 16,
        "self_attn_every_n_layers": 2,
        "expert_width_multiplier": 0.75,
        "vlm_model_name": "HuggingFaceTB/SmolVLM2-500M-Video-Instruct",
    }
)


class SmolVLALayout(Layout):
    """Layout of SmolVLA."""

    kind, title, defaults = "smolvla", "SmolVLA", DEFAULTS
    as_published = ("adapt_to_pi_aloha", "add_image_special_tokens", "attention_mode")
    num_steps, padding, centred = "num_steps", "longest", False

    def image_size(self, described: Mapping[str, Any]) -> tuple[int, int] | None:
        """Return the width and height to scale images to; ``None`` keeps their size."""
        size = described["resize_imgs_with_padding"]
        return size and tuple(size)

    def vlm_name(self, described: Mapping[str, Any]) -> str:
        """Return the name of a SmolVLM's checkpoint."""
        return str(described["vlm_model_name"])

    def check(self, key: str, described: Mapping[str, Any]) -> None:
        """Refuse an expert of another depth."""
        if described["num_expert_layers"] not in (-1, 0, described["num_vlm_layers"]):
            raise ConfigError(f"{key}: its expert must have as many layers as its language model")

    def find_vlm(
        self, key: str, config: FlowVLAConfig, folder: Path, described: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Path]:
        """Return the SmolVLM's ``config.json`` and its folder; see :class:`Layout`."""
        name = self.vlm_name(described)
        found = vlm_folder(key, folder, name)
        vlm = read_json(found / CONFIG)
        if vlm.get("model_type") not in ("smolvlm", "idefics3"):
            kind = vlm.get("model_type")
            raise ConfigError(f"{key}: its vision-language model {name} must be a SmolVLM; its model_type is {kind!r}")
        return vlm, found

    def scratch(self, scratch: SmolVLAScratchConfig, num_words: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Describe a model of random weights; see :class:`Layout`."""
        own = {
            "resize_imgs_with_padding": [scratch.image_size, scratch.image_size],
            "num_vlm_layers": scratch.num_layers,
            "vlm_model_name": VLM,
        }
        head_dim = scratch.hidden_size // scratch.num_attention_heads
        text = {"model_type": "llama", **text_sizes(scratch, num_words), "head_dim": head_dim, "rms_norm_eps": 1e-5}
        vlm = {
            "model_type": "smolvlm",
            "architectures": ["SmolVLMForConditionalGeneration"],
            "scale_factor": scratch.pixel_shuffle,
            "image_token_id": 1,
            "pad_token_id": 0,
            "text_config": text,
            "vision_config": {"model_type": "smolvlm_vision", **vision_sizes(scratch)},
        }
        return own, vlm


LAYOUT = SmolVLALayout()


def vlm_config(description: Description) -> SmolVLMConfig:
    """Return the sizes of the vision-language model, cut to the layers that are used."""
    parts = {name: dict(description.vlm[name]) for name in ("text_config", "vision_config")}
    config = SmolVLMConfig(**parts, scale_factor=description.vlm["scale_factor"])
    if description.config["num_vlm_layers"] > 0:
        config.text_config.num_hidden_layers = description.config["num_vlm_layers"]
    return config
