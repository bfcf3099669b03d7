"""Model of π0: a PaliGemma reads images and instruction, an expert of the same depth turns noise into actions.

Three blocks of embeddings attend to themselves and to the blocks before: images and instruction, which the PaliGemma
reads; the state, and the noisy actions, which the expert reads (Black et al., 2024, arXiv:2410.24164, section IV and
appendix B). The first two do not depend on the actions and their time, so they are computed once for all denoising
steps. Every action of a chunk attends to every other. Parameters have the names of LeRobot's checkpoints.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import GemmaConfig, PaliGemmaConfig
from transformers.models.gemma.modeling_gemma import GemmaMLP, GemmaRMSNorm
from transformers.models.paligemma.modeling_paligemma import PaliGemmaMultiModalProjector
from transformers.models.siglip.modeling_siglip import SiglipVisionModel

from embodyflow.policies.embodied.flow_vla import modeling_flow_vla
from embodyflow.policies.embodied.flow_vla.checkpoint_flow_vla import Description
from embodyflow.policies.embodied.flow_vla.layers_flow_vla import Layer, SelfAttention, rotary_embedding
from embodyflow.policies.embodied.flow_vla.modeling_flow_vla import (
    Context,
    FlowVLA,
    apply_linear,
    apply_tower,
    load_checkpoint,
    positions,
)
from embodyflow.policies.embodied.pi0.checkpoint_pi0 import translate_weights


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


class ContextModel(modeling_flow_vla.ContextModel):
    """Base of policy and critic: the PaliGemma, and the expert that reads the state.

    Args:
        description: Description of the checkpoint; weights are random.
    """

    def __init__(self, description: Description) -> None:
        super().__init__()
        vlm = description.vlm
        parts = {name: dict(vlm[name]) for name in ("text_config", "vision_config")}
        expert = GemmaConfig(**vlm["expert_config"])
        self.paligemma_with_expert = nn.ModuleDict(
            {
                "paligemma": PaliGemma(PaliGemmaConfig(**parts, projection_dim=vlm["projection_dim"])),
                "gemma_expert": nn.ModuleDict({"model": GemmaModel(expert)}),
            }
        )
        self.size, self._head_dim = expert.hidden_size, expert.head_dim
        self.state_proj = nn.Linear(description.config["max_state_dim"], self.size)

    @property
    def vlm(self) -> Any:
        """The PaliGemma."""
        return self.paligemma_with_expert["paligemma"]

    @property
    def expert(self) -> Any:
        """Layers that read state and actions."""
        expert: Any = self.paligemma_with_expert["gemma_expert"]
        return expert["model"]

    @property
    def blocks(self) -> list[nn.Module]:
        """Transformer blocks of vision tower, language model and expert."""
        return [*self.vlm.tower.encoder.layers, *self.vlm.model["language_model"].layers, *self.expert.layers]

    @property
    def tower(self) -> Any:
        """The vision tower."""
        return self.vlm.tower

    @property
    def unused(self) -> list[nn.Module]:
        """Parts of the language model after its last keys and values."""
        language = self.vlm.model["language_model"]
        return [language.norm, *language.layers[-1].after_keys_and_values]

    def read(self, pixels: Tensor, prompt_ids: Tensor, state: Tensor) -> Context:
        """Read an observation; see :meth:`.modeling_flow_vla.ContextModel.read`."""
        hidden, present = self._embed(pixels, prompt_ids)
        token = apply_linear(self.state_proj, state)[:, None]
        everything = torch.cat([present, present.new_ones(len(present), 1)], dim=1)
        mask = present[:, None, None].expand(-1, -1, present.shape[1], -1)
        rotary = rotary_embedding(positions(present), self._head_dim)
        after = rotary_embedding(present.sum(1, keepdim=True), self._head_dim)
        layers = []
        for reading, moving in zip(self.vlm.model["language_model"].layers, self.expert.layers, strict=True):
            hidden, *before = reading(hidden, rotary, mask)
            token, keys, values = moving(token, after, everything[:, None, None], tuple(before))
            layers.append((keys, values))
        return Context(self.expert.norm(token), everything, layers)

    def _embed(self, pixels: Tensor, prompt_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embeddings of images and instruction, float [N, P, D], and a mask without padding, bool [N, P].

        LeRobot fills in blank images for the checkpoint's other cameras and masks them. Leaving them out is equivalent.
        """
        images = self.vlm.embed_images(pixels.flatten(0, 1)).unflatten(0, pixels.shape[:2]).flatten(1, 2)
        words = self.vlm.model["language_model"].embed_tokens(prompt_ids)
        words = words * words.shape[-1] ** 0.5
        seen = prompt_ids.new_ones(len(prompt_ids), images.shape[1])
        return torch.cat([images, words], dim=1), torch.cat([seen, prompt_ids], dim=1) != 0


class FlowModel(ContextModel, modeling_flow_vla.FlowModel):
    """Model of π0 in LeRobot's form.

    Args:
        description: Description of the checkpoint; weights are random.
    """

    def __init__(self, description: Description) -> None:
        super().__init__(description)
        self._add_projections(description.config, self.size)

    def refine(self, context: Context, actions: Tensor) -> Tensor:
        """Return the expert's normalised outputs for embeddings of noisy actions, float [N, H, D]."""
        num_rows, size = actions.shape[:2]
        order = torch.arange(size, device=actions.device)
        rotary = rotary_embedding(context.present.sum(1, keepdim=True) + order, self._head_dim)
        everything = torch.cat([context.present, context.present.new_ones(num_rows, size)], dim=1)
        mask = everything[:, None, None].expand(-1, -1, size, -1)
        for layer, before in zip(self.expert.layers, context.layers, strict=True):
            actions, _, _ = layer(actions, rotary, mask, before)
        normalised: Tensor = self.expert.norm(actions)
        return normalised


class PI0(FlowVLA):
    """Model of the policy.

    Args:
        description: Description of the checkpoint; weights are random.
        train_expert_only: Whether to freeze the PaliGemma.
    """

    def __init__(self, description: Description, train_expert_only: bool) -> None:
        super().__init__(FlowModel(description), description, train_expert_only)


def build_model(description: Description, train_expert_only: bool) -> FlowVLA:
    """Return the model in float32, with a checkpoint's weights, or random ones from torch's global generator.

    Raises:
        ConfigError: The weights are not those of a π0 of this description.
    """
    if description.folder is None:
        return PI0(description, train_expert_only).eval()
    model = load_checkpoint(lambda: PI0(description, train_expert_only), description, {}, translate_weights).eval()
    embeddings: Any = model.model.vlm.tower.embeddings
    # The buffer is in no checkpoint, and the model was built on the meta device.
    embeddings.register_buffer("position_ids", torch.arange(embeddings.num_positions)[None], persistent=False)
    return model
