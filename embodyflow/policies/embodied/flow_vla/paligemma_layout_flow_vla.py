"""LeRobot's layout of policies with a PaliGemma: π0 and π0.5.

``config.json`` names the sizes of language model and expert by variants. A small model matches no variant; its sizes
are in ``vlm/config.json``, since LeRobot has no place for them.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from torch import Tensor

from embodyflow.errors import ConfigError
from embodyflow.policies.embodied.flow_vla import checkpoint_flow_vla
from embodyflow.policies.embodied.flow_vla.checkpoint_flow_vla import (
    VLM,
    Layout,
    text_sizes,
    vision_sizes,
    vlm_folder,
)
from embodyflow.policies.embodied.flow_vla.configuration_flow_vla import FlowVLAConfig, PaliGemmaScratchConfig
from embodyflow.policies.embodied.lerobot_processors import CONFIG
from embodyflow.policies.pretrained.checkpoints import read_json

PREFIX = "model."
WORDS = f"{PREFIX}paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
TIED_HEAD = f"{PREFIX}paligemma_with_expert.paligemma.lm_head.weight"
"""The language head, tied to :data:`WORDS`; a checkpoint may have either of the two."""
EXPERT_HEAD = f"{PREFIX}paligemma_with_expert.gemma_expert.lm_head.weight"
"""The head of the expert's class, which nothing has ever used."""
EXPERT_BIAS = f"{PREFIX}action_in_proj.bias"
"""A bias of as many numbers as the expert has features."""

TOKENIZER = "google/paligemma-3b-pt-224"
SCRATCH = "scratch"
GEMMA = {"num_hidden_layers": 18, "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256}
VARIANTS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "gemma_2b": {**GEMMA, "hidden_size": 2048, "intermediate_size": 16_384},
        "gemma_300m": {**GEMMA, "hidden_size": 1024, "intermediate_size": 4096},
    }
)
NUM_WORDS = 257_152
VISION = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "patch_size": 14,
}
"""Sizes of SigLIP's So400m."""

DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        **checkpoint_flow_vla.DEFAULTS,
        "image_resolution": [224, 224],
        "n_obs_steps": 1,
        "paligemma_variant": "gemma_2b",
        "action_expert_variant": "gemma_300m",
        "time_sampling_beta_alpha": 1.5,
        "time_sampling_beta_beta": 1.0,
        "time_sampling_offset": 0.001,
        "time_sampling_scale": 0.999,
    }
)


class PaliGemmaLayout(Layout):
    """Layout of policies with a PaliGemma.

    Images are padded by black, as in openpi, which trained the published base. LeRobot 0.4.4 pads by -1 before it maps
    [0, 1] to [-1, 1], so by -3 (its issue 2218). The results differ for images that are not square.
    """

    defaults = DEFAULTS
    as_published = ("n_obs_steps", *(name for name in DEFAULTS if name.startswith("time_sampling")))
    num_steps, padding, centred = "num_inference_steps", "max_length", True

    def image_size(self, described: Mapping[str, Any]) -> tuple[int, int]:
        """Return the width and height to scale images to."""
        height, width = described["image_resolution"]
        return width, height

    def vlm_name(self, described: Mapping[str, Any]) -> str:
        """Return the name of a PaliGemma's checkpoint."""
        return VLM if described["paligemma_variant"] == SCRATCH else TOKENIZER

    def check(self, key: str, described: Mapping[str, Any]) -> None:
        """Refuse images that are not square, and unknown variants."""
        height, width = described["image_resolution"]
        if height != width:
            raise ConfigError(f"{key}: its image_resolution must be square, not {described['image_resolution']}")
        names = ("paligemma_variant", "action_expert_variant")
        if [described[name] for name in names] == [SCRATCH, SCRATCH]:
            return
        for name, allowed in zip(names, (("gemma_2b",), tuple(VARIANTS)), strict=True):
            if described[name] not in allowed:
                raise ConfigError(f"{key}: its {name} is {described[name]!r}; allowed is {' or '.join(allowed)}")

    def find_vlm(
        self, key: str, config: FlowVLAConfig, folder: Path, described: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Path | None]:
        """Return the sizes, of a variant or from ``vlm``, and the tokenizer's folder; see :class:`Layout`."""
        name = self.vlm_name(described)
        if name == VLM:
            found = vlm_folder(key, folder, name)
            vlm = read_json(found / CONFIG)
            if vlm.get("model_type") != "paligemma":
                raise ConfigError(f"{key}: its {VLM}/{CONFIG} must be a PaliGemma's, with model_type 'paligemma'")
            return vlm, found
        text, expert = (VARIANTS[described[name]] for name in ("paligemma_variant", "action_expert_variant"))
        vision = {**VISION, "image_size": described["image_resolution"][0]}
        # The tokenizer's repository is gated, so it is not fetched if another tokenizer is configured.
        tokenizer_folder = None if config.tokenizer else vlm_folder(key, folder, name)
        return sizes_of({**text, "vocab_size": NUM_WORDS}, vision, expert), tokenizer_folder

    def scratch(self, scratch: PaliGemmaScratchConfig, num_words: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Describe a model of random weights; see :class:`Layout`."""
        own = {
            "image_resolution": [scratch.image_size, scratch.image_size],
            "paligemma_variant": SCRATCH,
            "action_expert_variant": SCRATCH,
        }
        text = {**text_sizes(scratch, num_words), "head_dim": scratch.head_dim}
        narrow = {"hidden_size": scratch.expert_hidden_size, "intermediate_size": scratch.expert_intermediate_size}
        return own, sizes_of(text, vision_sizes(scratch), {**text, **narrow})

    def export_weights(self, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the weights with two more heads, which LeRobot expects but never uses."""
        words, size = weights[WORDS], len(weights[EXPERT_BIAS])
        return {**weights, TIED_HEAD: words, EXPERT_HEAD: np.zeros((len(words), size), words.dtype)}


def translate_weights(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a checkpoint's weights by the model's names, without those that have no effect.

    The names of the published base lack ``model.`` in front, and of the tied pair it has the head.
    """
    named = {name if name.startswith(PREFIX) else f"{PREFIX}{name}": value for name, value in state.items()}
    named.pop(EXPERT_HEAD, None)
    head = named.pop(TIED_HEAD, None)
    if head is not None:
        named.setdefault(WORDS, head)
    return named


def sizes_of(text: Mapping[str, Any], vision: Mapping[str, Any], expert: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes in the form of a PaliGemma's ``config.json``, with those of the expert."""
    return {
        "model_type": "paligemma",
        "architectures": ["PaliGemmaForConditionalGeneration"],
        "projection_dim": text["hidden_size"],
        "text_config": {"model_type": "gemma", **text},
        "vision_config": {"model_type": "siglip_vision_model", "vision_use_head": False, **vision},
        "expert_config": dict(expert),
    }
