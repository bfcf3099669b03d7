"""PaliGemma of policies whose action expert is a Gemma of the same depth: π0 and π0.5.

Images and prompt attend to one another; padding is left out. Every action of a chunk attends to them and to every other
action (Black et al., 2024, arXiv:2410.24164, section IV and appendix B).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GemmaConfig, PaliGemmaConfig
from transformers.models.gemma.modeling_gemma import GemmaMLP, GemmaRMSNorm
from transformers.models.paligemma.modeling_paligemma import PaliGemmaMultiModalProjector
from transformers.models.siglip.modeling_siglip import SiglipVisionModel

from embodyflow.policies.embodied.flow_vla.checkpoint_flow_vla import Description
from embodyflow.policies.embodied.flow_vla.layers_flow_vla import Layer, SelfAttention, rotary_embedding
from embodyflow.policies.embodied.flow_vla.modeling_flow_vla import Context, ContextModel, FlowVLA, apply_tower
from embodyflow.policies.embodied.flow_vla.modeling_flow_vla import load_checkpoint as load_any_checkpoint
from embodyflow.policies.embodied.flow_vla.paligemma_layout_flow_vla import translate_weights


class GemmaModel(nn.Module):
    """Layers that return their keys and values, and the normalisation after them."""

    def __init__(self, config: GemmaConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            Layer(config, SelfAttention(config, config.hidden_size), GemmaRMSNorm, GemmaMLP)
            for _ in range(config.num_hidden_layers)
        )
        self.norm = GemmaRMSNorm(config.hidden_size, config.rms_norm_eps)


class LanguageModel(GemmaModel):
    """Embedding of words, and the layers that read them."""

    def __init__(self, config: GemmaConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        nn.init.normal_(self.embed_tokens.weight, std=config.initializer_range)


class PaliGemma(nn.Module):
    """PaliGemma of transformers, whose language model's layers return their keys and values."""

    def __init__(self, config: PaliGemmaConfig) -> None:
        super().__init__()
        config.vision_config._attn_implementation = "sdpa"
        tower = SiglipVisionModel(config.vision_config)
        self.model = nn.ModuleDict(
            {
                "vision_tower": nn.ModuleDict({"vision_model": tower}),
                "multi_modal_projector": PaliGemmaMultiModalProjector(config),
                "language_model": LanguageModel(config.text_config),
            }
        )

    @property
    def tower(self) -> Any:
        """The vision tower."""
        vision: Any = self.model["vision_tower"]
        return vision["vision_model"]

    def embed_images(self, pixels: Tensor) -> Tensor:
        """Return the embeddings of images float32 [n, 3, H, W], float [n, p, D]."""
        embedded: Tensor = self.model["multi_modal_projector"](apply_tower(self.tower, pixels))
        return embedded


class PaliGemmaReader(ContextModel):
    """Base of models with a PaliGemma.

    Args:
        description: Description of the checkpoint; weights are random.
    """

    def __init__(self, description: Description) -> None:
        super().__init__()
        vlm = description.vlm
        parts = {name: dict(vlm[name]) for name in ("text_config", "vision_config")}
        paligemma = PaliGemma(PaliGemmaConfig(**parts, projection_dim=vlm["projection_dim"]))
        self.paligemma_with_expert = nn.ModuleDict({"paligemma": paligemma})
        self.state_size = description.config["max_state_dim"]

    @property
    def vlm(self) -> Any:
        """The PaliGemma."""
        return self.paligemma_with_expert["paligemma"]

    @property
    def language(self) -> Any:
        """The PaliGemma's language model."""
        return self.vlm.model["language_model"]

    @property
    def expert(self) -> Any:
        """The Gemma that reads actions."""
        expert: Any = self.paligemma_with_expert["gemma_expert"]
        return expert["model"]

    @property
    def tower(self) -> Any:
        """The vision tower."""
        return self.vlm.tower

    def add_expert(self, expert: nn.Module) -> None:
        """Add the Gemma that reads actions, under LeRobot's name."""
        self.paligemma_with_expert["gemma_expert"] = nn.ModuleDict({"model": expert})

    def embed(self, pixels: Tensor, prompt_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embeddings of images and prompt, float [N, P, D], and a mask without padding, bool [N, P].

        LeRobot fills in blank images for the checkpoint's other cameras and masks them. Leaving them out is equivalent.
        """
        images = self.vlm.embed_images(pixels.flatten(0, 1)).unflatten(0, pixels.shape[:2]).flatten(1, 2)
        words = self.language.embed_tokens(prompt_ids)
        words = words * words.shape[-1] ** 0.5
        seen = prompt_ids.new_ones(len(prompt_ids), images.shape[1])
        return torch.cat([images, words], dim=1), torch.cat([seen, prompt_ids], dim=1) != 0


def expert_config(description: Description) -> GemmaConfig:
    """Return the sizes of the Gemma that reads actions."""
    return GemmaConfig(**description.vlm["expert_config"])


def behind(context: Context, size: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Return rotary embeddings and attention mask of H actions that follow a context.

    Args:
        context: Context of N rows with P embeddings.
        size: H.
        head_dim: Features of a head.

    Returns:
        Rotary embeddings, see :func:`.layers_flow_vla.rotary_embedding`, and a mask, bool [N, 1, H, P + H].
    """
    present = context.present
    rotary = rotary_embedding(present.sum(1, keepdim=True) + torch.arange(size, device=present.device), head_dim)
    everything = torch.cat([present, present.new_ones(len(present), size)], dim=1)
    return rotary, everything[:, None, None].expand(-1, -1, size, -1)


def load_checkpoint(make: Callable[[], FlowVLA], description: Description) -> FlowVLA:
    """Return a model in float32 with a checkpoint's weights and statistics.

    Args:
        make: Function that builds the model, of random weights.
        description: Description that it builds from, with ``folder``.

    Raises:
        ConfigError: The weights are not those of a model of this description.
    """
    model = load_any_checkpoint(make, description, {}, translate_weights)
    embeddings: Any = model.model.tower.embeddings
    # The buffer is in no checkpoint, and the model was built on the meta device.
    embeddings.register_buffer("position_ids", torch.arange(embeddings.num_positions)[None], persistent=False)
    return model
