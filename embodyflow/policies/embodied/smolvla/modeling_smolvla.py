"""Model of SmolVLA: a vision-language model reads images, instruction and state; an expert turns noise into actions.

The expert's layers attend to those of the language model at the same depth, every second one to earlier actions too.
The expert gives the velocity of noisy actions (Shukor et al., 2025, arXiv:2506.01844). No action attends to later ones,
so the first C actions of a chunk do not depend on the rest. Parameters have the names of LeRobot's checkpoints.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, SmolVLMConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.smolvlm.modeling_smolvlm import SmolVLMConnector, SmolVLMVisionTransformer

from embodyflow.policies.embodied.flow_vla import modeling_flow_vla
from embodyflow.policies.embodied.flow_vla.checkpoint_flow_vla import Description
from embodyflow.policies.embodied.flow_vla.layers_flow_vla import rotary_embedding
from embodyflow.policies.embodied.flow_vla.modeling_flow_vla import (
    Context,
    FlowVLA,
    TimedActionsModel,
    apply_linear,
    apply_tower,
    load_checkpoint,
    positions,
)
from embodyflow.policies.embodied.smolvla.checkpoint_smolvla import vlm_config
from embodyflow.policies.embodied.smolvla.layers_smolvla import LlamaLayer, expert_config

UNUSED_HEAD = "model.vlm_with_expert.vlm.lm_head.weight"
"""The language head, which has no effect; a checkpoint may lack it."""


class TextModel(nn.Module):
    """First layers of the language model."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(LlamaLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)


class Expert(nn.Module):
    """The action expert.

    Args:
        config: Sizes of the expert.
        self_attention_every: Distance between layers that attend to actions too; without such layers 0 or less.
    """

    def __init__(self, config: LlamaConfig, self_attention_every: int) -> None:
        super().__init__()
        context_size = config.num_key_value_heads * config.head_dim
        self.layers = nn.ModuleList(
            LlamaLayer(config, None if self_attention_every > 0 and depth % self_attention_every == 0 else context_size)
            for depth in range(config.num_hidden_layers)
        )
        self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)


class VisionLanguageModel(nn.Module):
    """SmolVLM of transformers, whose language model's layers return their keys and values."""

    def __init__(self, config: SmolVLMConfig) -> None:
        super().__init__()
        text: LlamaConfig = config.text_config
        config.vision_config._attn_implementation = "sdpa"
        self.model = nn.ModuleDict(
            {
                "vision_model": SmolVLMVisionTransformer(config.vision_config),
                "connector": SmolVLMConnector(config),
                "text_model": TextModel(text),
            }
        )
        self.lm_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)

    def embed_images(self, pixels: Tensor) -> Tensor:
        """Return the embeddings of images float32 [n, 3, H, W], float [n, p, D]."""
        embedded: Tensor = self.model["connector"](apply_tower(self.model["vision_model"], pixels))
        return embedded


class ContextModel(modeling_flow_vla.ContextModel):
    """Base of policy and critic: embeds images, instruction and state as one sequence, and reads it.

    Args:
        description: Description of the checkpoint; weights are random.
    """

    def __init__(self, description: Description) -> None:
        super().__init__()
        config = vlm_config(description)
        self.text: LlamaConfig = config.text_config
        self.vlm_with_expert = nn.ModuleDict({"vlm": VisionLanguageModel(config)})
        self.size, self.state_size = self.text.hidden_size, description.config["max_state_dim"]
        self.state_proj = nn.Linear(self.state_size, self.size)

    @property
    def vlm(self) -> Any:
        """The vision-language model."""
        return self.vlm_with_expert["vlm"]

    @property
    def blocks(self) -> list[nn.Module]:
        """Transformer blocks of the model."""
        return [*self.vlm.model["vision_model"].encoder.layers, *self.vlm.model["text_model"].layers]

    @property
    def tower(self) -> Any:
        """The vision tower."""
        return self.vlm.model["vision_model"]

    @property
    def patches_per_embedding(self) -> int:
        """A square of patches, by the connector's pixel shuffle."""
        return int(self.vlm.model["connector"].scale_factor ** 2)

    @property
    def unused(self) -> list[nn.Module]:
        """The language head, and the normalisation before it."""
        return [self.vlm.lm_head, self.vlm.model["text_model"].norm]

    def read(self, pixels: Tensor, prompt_ids: Tensor, state: Tensor) -> Context:
        """Read an observation; see :meth:`.modeling_flow_vla.ContextModel.read`."""
        hidden, present = self._embed(pixels, prompt_ids, state)
        mask = present[:, None, None].repeat(1, 1, present.shape[1], 1)
        mask[:, :, :-1, -1] = False  # images and instruction do not attend to the state, the last
        rotary = rotary_embedding(positions(present), self.text.head_dim)
        layers = []
        for layer in self.vlm.model["text_model"].layers:
            hidden, keys, values = layer(hidden, rotary, mask)
            layers.append((keys, values))
        return Context(hidden, present, layers)

    def _embed(self, pixels: Tensor, prompt_ids: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embeddings of all inputs, float [N, P, D], and a mask without padding, bool [N, P]."""
        scale = self.text.hidden_size**0.5
        images = scale * self.vlm.embed_images(pixels.flatten(0, 1)).unflatten(0, pixels.shape[:2]).flatten(1, 2)
        words = scale * self.vlm.model["text_model"].embed_tokens(prompt_ids)
        ones = prompt_ids.new_ones(len(prompt_ids), images.shape[1])
        present = torch.cat([ones, prompt_ids, ones[:, :1]], dim=1) != 0
        return torch.cat([images, words, apply_linear(self.state_proj, state)[:, None]], dim=1), present


class FlowModel(ContextModel, TimedActionsModel):
    """Model of SmolVLA in LeRobot's form.

    Args:
        description: Description of the checkpoint; weights are random.
    """

    def __init__(self, description: Description) -> None:
        super().__init__(description)
        config = description.config
        expert = expert_config(self.text, config["expert_width_multiplier"])
        self.vlm_with_expert["lm_expert"] = Expert(expert, config["self_attn_every_n_layers"])
        self._add_projections(config, expert.hidden_size)

    @property
    def blocks(self) -> list[nn.Module]:
        """Transformer blocks of vision tower, language model and expert."""
        return [*super().blocks, *self.vlm_with_expert["lm_expert"].layers]  # type: ignore[misc]

    @property
    def unused(self) -> list[nn.Module]:
        """Also the parts of the language model after its last keys and values."""
        return [*super().unused, *self.vlm.model["text_model"].layers[-1].after_keys_and_values]

    def refine(self, context: Context, actions: Tensor, moments: Tensor) -> Tensor:
        """Return the expert's outputs; see :meth:`.modeling_flow_vla.FlowModel.refine`."""
        actions = self.join(actions, moments)
        present, size = context.present, actions.shape[1]
        order = torch.arange(size, device=actions.device)
        seen = present[:, None, None].expand(-1, -1, size, -1)
        earlier = (order <= order[:, None]).expand(len(actions), 1, -1, -1)
        after = rotary_embedding(present.sum(1, keepdim=True) + order, self.text.head_dim)
        alone = rotary_embedding(order.expand(len(actions), -1), self.text.head_dim)
        expert: Any = self.vlm_with_expert["lm_expert"]
        for layer, before in zip(expert.layers, context.layers, strict=True):
            is_cross = layer.self_attn.is_cross_attention
            mask = seen if is_cross else torch.cat([seen, earlier], dim=-1)
            actions, _, _ = layer(actions, alone if is_cross else after, mask, before)
        normalised: Tensor = expert.norm(actions)
        return normalised


class SmolVLA(FlowVLA):
    """Model of the policy.

    Args:
        description: Description of the checkpoint; weights are random.
        train_expert_only: Whether to freeze the vision-language model.
    """

    def __init__(self, description: Description, train_expert_only: bool) -> None:
        super().__init__(FlowModel(description), description, train_expert_only)


def build_model(description: Description, train_expert_only: bool) -> FlowVLA:
    """Return the model in float32, with a checkpoint's weights, or random ones from torch's global generator.

    Raises:
        ConfigError: The weights are not those of a SmolVLA of this description.
    """
    if description.folder is None:
        return SmolVLA(description, train_expert_only).eval()
    text = vlm_config(description).text_config
    head = {UNUSED_HEAD: torch.zeros(text.vocab_size, text.hidden_size)}
    return load_checkpoint(lambda: SmolVLA(description, train_expert_only), description, head).eval()
