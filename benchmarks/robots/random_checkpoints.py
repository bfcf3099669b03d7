"""Checkpoints with the published sizes of SmolVLA and π0.5, cut to some layers, whose weights are random."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from embodyflow.policies.embodied.flow_vla.checkpoint_flow_vla import VLM, Description, Layout
from embodyflow.policies.embodied.flow_vla.export_flow_vla import write_checkpoint
from embodyflow.policies.embodied.flow_vla.paligemma_layout_flow_vla import (
    NUM_WORDS,
    SCRATCH,
    VARIANTS,
    VISION,
    sizes_of,
)
from embodyflow.policies.embodied.flow_vla.tokenizer_flow_vla import build_tokenizer
from embodyflow.policies.embodied.lerobot_processors import ACTION, IMAGES, STATE, WEIGHTS
from embodyflow.policies.embodied.pi05 import checkpoint_pi05
from embodyflow.policies.embodied.pi05.configuration_pi05 import PI05Config
from embodyflow.policies.embodied.pi05.modeling_pi05 import PI05
from embodyflow.policies.embodied.pi05.prompt_pi05 import StatePrompt
from embodyflow.policies.embodied.smolvla import checkpoint_smolvla
from embodyflow.policies.embodied.smolvla.configuration_smolvla import SmolVLAConfig
from embodyflow.policies.embodied.smolvla.modeling_smolvla import SmolVLA

CAMERAS = ("image", "wrist_image")
STATE_DIM, ACTION_DIM, CHUNK = 8, 7, 50
TOKENIZER = "embodyflow.policies.embodied.flow_vla.tokenizer_flow_vla:build_tokenizer"
SMOLVLM_TEXT = {
    **{"model_type": "llama", "vocab_size": 49_280, "hidden_size": 960, "intermediate_size": 2560, "head_dim": 64},
    **{"num_hidden_layers": 32, "num_attention_heads": 15, "num_key_value_heads": 5, "rms_norm_eps": 1e-5},
}
SMOLVLM_VISION = {
    **{"model_type": "smolvlm_vision", "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12},
    **{"num_attention_heads": 12, "image_size": 512, "patch_size": 16},
}


class Published(ABC):
    """A policy with published sizes.

    Attributes:
        num_layers: Published number of layers of language model and expert.
        words: Overrides that choose the policy for a run.
    """

    num_layers: ClassVar[int]
    words: ClassVar[tuple[str, ...]]

    @abstractmethod
    def write(self, folder: Path, num_layers: int) -> dict[str, int]:
        """Write a checkpoint of random weights from torch's global generator; return the number of weights by part.

        Args:
            folder: Folder to write.
            num_layers: Layers of language model and expert.
        """


class PublishedSmolVLA(Published):
    """SmolVLA, whose weights are bfloat16 as published."""

    num_layers = 16
    words = ("policy=smolvla", "policy.max_prompt_tokens=64")  # a token is a letter

    def write(self, folder: Path, num_layers: int) -> dict[str, int]:
        """Write a checkpoint; see :class:`Published`."""
        from safetensors.torch import load_file, save_file

        layout = checkpoint_smolvla.LAYOUT
        sizes = {"vlm_model_name": VLM, "num_vlm_layers": num_layers}
        vlm = {
            **{"model_type": "smolvlm", "architectures": ["SmolVLMForConditionalGeneration"], "scale_factor": 4},
            **{"image_token_id": 49_190, "pad_token_id": 2},
            **{"text_config": SMOLVLM_TEXT, "vision_config": SMOLVLM_VISION},
        }
        description = Description(_described(layout, 512, sizes), vlm, {}, None, None)
        model = SmolVLA(description, train_expert_only=True)
        config = SmolVLAConfig(**_keys(folder))
        weights = {name: value.numpy() for name, value in model.state_dict().items()}
        write_checkpoint(layout, config, description, build_tokenizer(), weights, folder)
        halved = {name: value.bfloat16() for name, value in load_file(folder / WEIGHTS).items()}
        save_file(halved, folder / WEIGHTS)
        vlm_model: Any = model.model.vlm
        parts = {
            "vision tower": vlm_model.model["vision_model"],
            "connector": vlm_model.model["connector"],
            "language model": vlm_model.model["text_model"],
            "language head": vlm_model.lm_head,
            "expert": model.model.vlm_with_expert["lm_expert"],
        }
        return _counts(model, parts)


class PublishedPI05(Published):
    """π0.5, whose weights are float32 as published."""

    num_layers = 18
    words = ("policy=pi05", "policy.max_prompt_tokens=256")  # a token is a letter or a digit

    def write(self, folder: Path, num_layers: int) -> dict[str, int]:
        """Write a checkpoint; see :class:`Published`."""
        layout, size = checkpoint_pi05.LAYOUT, 224
        variants = {"paligemma_variant": SCRATCH, "action_expert_variant": SCRATCH}
        text, expert = ({**VARIANTS[name], "num_hidden_layers": num_layers} for name in ("gemma_2b", "gemma_300m"))
        vlm = sizes_of({**text, "vocab_size": NUM_WORDS}, {**VISION, "image_size": size}, expert)
        description = Description(_described(layout, size, variants), vlm, {}, None, None, layout.statistics)
        tokenizer = build_tokenizer()
        model = PI05(description, StatePrompt(tokenizer), train_expert_only=True)
        weights = {name: value.numpy() for name, value in model.state_dict().items()}
        write_checkpoint(layout, PI05Config(**_keys(folder)), description, tokenizer, weights, folder)
        vlm_model: Any = model.model.vlm
        parts = {
            "vision tower": vlm_model.model["vision_tower"],
            "projector": vlm_model.model["multi_modal_projector"],
            "language model": vlm_model.model["language_model"],
            "expert": model.model.paligemma_with_expert["gemma_expert"],
        }
        return _counts(model, parts)


PUBLISHED: Mapping[str, Published] = {"smolvla": PublishedSmolVLA(), "pi05": PublishedPI05()}
"""Policies by name."""


def _keys(folder: Path) -> dict[str, Any]:
    return {"path": str(folder), "tokenizer": TOKENIZER, "cameras": CAMERAS, "chunk_size": CHUNK}


def _described(layout: Layout, image_size: int, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a checkpoint's ``config.json``."""
    images = {f"{IMAGES}{name}": {"type": "VISUAL", "shape": [3, image_size, image_size]} for name in CAMERAS}
    return {
        **{**layout.defaults, "type": layout.kind, **sizes},
        "input_features": {STATE: {"type": "STATE", "shape": [STATE_DIM]}, **images},
        "output_features": {ACTION: {"type": "ACTION", "shape": [ACTION_DIM]}},
        "normalization_mapping": layout.statistics.mapping(),
    }


def _counts(model: Any, parts: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of weights of each part, of all, and of those that are trained with the expert only."""
    counts = {name: sum(value.numel() for value in part.parameters()) for name, part in parts.items()}
    counts["all"] = sum(value.numel() for value in model.parameters())
    counts["projections"] = counts["all"] - sum(count for name, count in counts.items() if name != "all")
    counts["trained"] = sum(value.numel() for value in model.parameters() if value.requires_grad)
    return counts
