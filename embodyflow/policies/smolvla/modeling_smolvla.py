"""SmolVLA: a vision-language model reads images, instruction and state; an expert turns noise into actions.

The expert's layers attend to those of the language model at the same depth, every second one to the actions before
too, and say by which velocity noisy actions move (Shukor et al., 2025, arXiv:2506.01844). No action attends to later
ones: the first C actions of a chunk are the same whichever come after them. Parameters have the names of LeRobot's
checkpoints.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, SmolVLMConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.smolvlm.modeling_smolvlm import SmolVLMConnector, SmolVLMVisionTransformer

from embodyflow.policies.flow_vla import modeling_flow_vla
from embodyflow.policies.flow_vla.checkpoint_flow_vla import Description
from embodyflow.policies.flow_vla.layers_flow_vla import turn_by
from embodyflow.policies.flow_vla.modeling_flow_vla import (
    Context,
    FlowVLA,
    fed,
    load_checkpoint,
    looked_at,
    positions,
)
from embodyflow.policies.smolvla.checkpoint_smolvla import vlm_config
from embodyflow.policies.smolvla.layers_smolvla import LlamaLayer, expert_config

UNUSED_HEAD = "model.vlm_with_expert.vlm.lm_head.weight"
"""The head that writes words; a checkpoint may lack it."""


class TextModel(nn.Module):
    """The language model's first layers."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(LlamaLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)


class Expert(nn.Module):
    """The action expert.

    Args:
        config: its sizes.
        self_attention_every: layers from one that attends to actions too to the next; 0 and less is none.
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
    """A SmolVLM of transformers, its language model of layers that show their keys and values."""

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

    def see(self, pixels: Tensor) -> Tensor:
        """Return the embeddings, float [n, p, D], of images float32 [n, 3, H, W]."""
        embedded: Tensor = self.model["connector"](looked_at(self.model["vision_model"], pixels))
        return embedded


class ContextModel(modeling_flow_vla.ContextModel):
    """What policy and critic share: images, instruction and state as a sequence, and who reads it.

    Args:
        description: of the checkpoint; weights are random.
    """

    def __init__(self, description: Description) -> None:
        super().__init__()
        config = vlm_config(description)
        self.text: LlamaConfig = config.text_config
        self.vlm_with_expert = nn.ModuleDict({"vlm": VisionLanguageModel(config)})
        self.size = self.text.hidden_size
        self.state_proj = nn.Linear(description.config["max_state_dim"], self.size)

    @property
    def vlm(self) -> Any:
        """The vision-language model."""
        return self.vlm_with_expert["vlm"]

    @property
    def blocks(self) -> list[nn.Module]:
        """Its transformer blocks."""
        return [*self.vlm.model["vision_model"].encoder.layers, *self.vlm.model["text_model"].layers]

    @property
    def unread(self) -> list[nn.Module]:
        """The head that writes words, and the normalisation before it."""
        return [self.vlm.lm_head, self.vlm.model["text_model"].norm]

    def read(self, pixels: Tensor, prompt_ids: Tensor, state: Tensor) -> Context:
        """Read what was seen; see :meth:`.modeling_flow_vla.ContextModel.read`."""
        hidden, present = self._embed(pixels, prompt_ids, state)
        mask = present[:, None, None].repeat(1, 1, present.shape[1], 1)
        mask[:, :, :-1, -1] = False  # images and instruction do not attend to the state, the last
        turn = turn_by(positions(present), self.text.head_dim)
        layers = []
        for layer in self.vlm.model["text_model"].layers:
            hidden, keys, values = layer(hidden, turn, mask)
            layers.append((keys, values))
        return Context(hidden, present, layers)

    def _embed(self, pixels: Tensor, prompt_ids: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return images, instruction and state as embeddings, float [N, P, D], and which there are, bool [N, P]."""
        scale = self.text.hidden_size**0.5
        images = scale * self.vlm.see(pixels.flatten(0, 1)).unflatten(0, pixels.shape[:2]).flatten(1, 2)
        words = scale * self.vlm.model["text_model"].embed_tokens(prompt_ids)
        ones = prompt_ids.new_ones(len(prompt_ids), images.shape[1])
        present = torch.cat([ones, prompt_ids, ones[:, :1]], dim=1) != 0
        return torch.cat([images, words, fed(self.state_proj, state)[:, None]], dim=1), present


class FlowModel(ContextModel, modeling_flow_vla.FlowModel):
    """The model as LeRobot has it.

    Args:
        description: of the checkpoint; weights are random.
    """

    def __init__(self, description: Description) -> None:
        super().__init__(description)
        config = description.config
        expert = expert_config(self.text, config["expert_width_multiplier"])
        self.vlm_with_expert["lm_expert"] = Expert(expert, config["self_attn_every_n_layers"])
        self._add_projections(config, expert.hidden_size)

    @property
    def blocks(self) -> list[nn.Module]:
        """The transformer blocks of vision tower, language model and expert."""
        return [*super().blocks, *self.vlm_with_expert["lm_expert"].layers]  # type: ignore[misc]

    @property
    def unread(self) -> list[nn.Module]:
        """Also what the language model's last layer makes of its keys and values."""
        return [*super().unread, *self.vlm.model["text_model"].layers[-1].after_keys_and_values]

    def refine(self, context: Context, actions: Tensor) -> Tensor:
        """Return what the expert makes of embeddings of noisy actions, float [N, C, D], normalised."""
        present, size = context.present, actions.shape[1]
        order = torch.arange(size, device=actions.device)
        seen = present[:, None, None].expand(-1, -1, size, -1)
        earlier = (order <= order[:, None]).expand(len(actions), 1, -1, -1)
        after = turn_by(present.sum(1, keepdim=True) + order, self.text.head_dim)
        alone = turn_by(order.expand(len(actions), -1), self.text.head_dim)
        expert: Any = self.vlm_with_expert["lm_expert"]
        for layer, before in zip(expert.layers, context.layers, strict=True):
            crosses = layer.self_attn.crosses
            mask = seen if crosses else torch.cat([seen, earlier], dim=-1)
            actions, _, _ = layer(actions, alone if crosses else after, mask, before)
        normalised: Tensor = expert.norm(actions)
        return normalised


class SmolVLA(FlowVLA):
    """The policy.

    Args:
        description: of the checkpoint; weights are random.
        train_expert_only: freeze the vision-language model.
    """

    def __init__(self, description: Description, train_expert_only: bool) -> None:
        super().__init__(FlowModel(description), description, train_expert_only)


def build_model(description: Description, train_expert_only: bool) -> FlowVLA:
    """Return the model in float32, of a checkpoint's weights, or of random ones by torch's global generator.

    Raises:
        ConfigError: the weights are not those of a SmolVLA of this description.
    """
    if description.folder is None:
        return SmolVLA(description, train_expert_only).eval()
    text = vlm_config(description).text_config
    head = {UNUSED_HEAD: torch.zeros(text.vocab_size, text.hidden_size)}
    return load_checkpoint(lambda: SmolVLA(description, train_expert_only), description, head).eval()
