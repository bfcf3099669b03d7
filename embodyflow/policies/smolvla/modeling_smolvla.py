"""SmolVLA: a vision-language model reads images, instruction and state; an expert turns noise into actions.

The expert's layers attend to those of the language model at the same depth, every second one to the actions before
too, and say by which velocity noisy actions move (Shukor et al., 2025, arXiv:2506.01844). No action attends to later
ones: the first C actions of a chunk are the same whichever come after them. Parameters have the names of LeRobot's
checkpoints.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, SmolVLMConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.smolvlm.modeling_smolvlm import SmolVLMConnector, SmolVLMVisionTransformer

from embodyflow.policies.checkpoints import load_weights
from embodyflow.policies.smolvla.checkpoint_smolvla import WEIGHTS, Description
from embodyflow.policies.smolvla.layers_smolvla import KeysAndValues, Layer, expert_config, turn_by

UNUSED_HEAD = "model.vlm_with_expert.vlm.lm_head.weight"
"""The head that writes words; a checkpoint may lack it."""


@dataclass(frozen=True)
class Context:
    """What the vision-language model makes of P embeddings.

    Attributes:
        hidden: float [N, P, D], of its last layer.
        present: bool [N, P], what is no padding.
        layers: keys and values of each layer.
    """

    hidden: Tensor
    present: Tensor
    layers: Sequence[KeysAndValues]

    def repeated(self, times: int) -> "Context":
        """Return it with every row ``times`` times."""
        hidden, present = (each.repeat_interleave(times, dim=0) for each in (self.hidden, self.present))
        layers = [(k.repeat_interleave(times, dim=0), v.repeat_interleave(times, dim=0)) for k, v in self.layers]
        return Context(hidden, present, layers)


class Statistics(nn.Module):
    """What standardises states and actions: buffers, so that they go where the weights go."""

    EPSILON = 1e-8

    def __init__(self, state_dim: int, action_dim: int) -> None:
        super().__init__()
        for name, size in (("state", state_dim), ("action", action_dim)):
            self.register_buffer(f"{name}_mean", torch.zeros(size))
            self.register_buffer(f"{name}_std", torch.ones(size))

    def standard(self, name: str, values: Tensor, size: int) -> Tensor:
        """Return states or actions, float32 [..., S], in deviations from their mean, padded by 0 to ``size``."""
        mean, std = self.get_buffer(f"{name}_mean"), self.get_buffer(f"{name}_std")
        return F.pad((values - mean) / (std + self.EPSILON), (0, size - values.shape[-1]))

    def actions(self, standard: Tensor) -> Tensor:
        """Return the actions, float32 [..., A], that padded ones [..., Amax] stand for."""
        mean, std = self.get_buffer("action_mean"), self.get_buffer("action_std")
        return standard[..., : len(mean)] * std + mean


class TextModel(nn.Module):
    """The language model's first layers."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
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
            Layer(config, None if self_attention_every > 0 and depth % self_attention_every == 0 else context_size)
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
        tower: Any = self.model["vision_model"]
        seen = tower(pixel_values=pixels.to(tower.embeddings.patch_embedding.weight.dtype)).last_hidden_state
        embedded: Tensor = self.model["connector"](seen)
        return embedded


class ContextModel(nn.Module):
    """What policy and critic share: images, instruction and state as a sequence, and who reads it.

    Args:
        description: of the checkpoint; weights are random.
    """

    def __init__(self, description: Description) -> None:
        super().__init__()
        config = description.vlm_config()
        self.text: LlamaConfig = config.text_config
        self.vlm_with_expert = nn.ModuleDict({"vlm": VisionLanguageModel(config)})
        self.state_proj = nn.Linear(description.config["max_state_dim"], self.text.hidden_size)

    @property
    def vlm(self) -> Any:
        """The vision-language model."""
        return self.vlm_with_expert["vlm"]

    @property
    def blocks(self) -> list[nn.Module]:
        """Its transformer blocks."""
        return [*self.vlm.model["vision_model"].encoder.layers, *self.vlm.model["text_model"].layers]

    def read(self, pixels: Tensor, prompt_ids: Tensor, state: Tensor) -> Context:
        """Read what was seen.

        Args:
            pixels: float32 [N, K, 3, H, W], K images.
            prompt_ids: int64 [N, I]; 0 is padding.
            state: float32 [N, Smax], standardised.
        """
        hidden, present = self._embed(pixels, prompt_ids, state)
        mask = present[:, None, None].repeat(1, 1, present.shape[1], 1)
        mask[:, :, :-1, -1] = False  # images and instruction do not attend to the state, the last
        turn = turn_by((present.long().cumsum(-1) - 1).clamp(min=0), self.text.head_dim)
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
        return torch.cat([images, words, _fed(self.state_proj, state)[:, None]], dim=1), present


class FlowModel(ContextModel):
    """The model as LeRobot has it.

    Args:
        description: of the checkpoint; weights are random.
    """

    def __init__(self, description: Description) -> None:
        super().__init__(description)
        config = description.config
        expert = expert_config(self.text, config["expert_width_multiplier"])
        self.vlm_with_expert["lm_expert"] = Expert(expert, config["self_attn_every_n_layers"])
        self.action_in_proj = nn.Linear(config["max_action_dim"], expert.hidden_size)
        self.action_out_proj = nn.Linear(expert.hidden_size, config["max_action_dim"])
        self.action_time_mlp_in = nn.Linear(2 * expert.hidden_size, expert.hidden_size)
        self.action_time_mlp_out = nn.Linear(expert.hidden_size, expert.hidden_size)
        self._periods = (config["min_period"], config["max_period"])

    @property
    def blocks(self) -> list[nn.Module]:
        """The transformer blocks of vision tower, language model and expert."""
        return [*super().blocks, *self.vlm_with_expert["lm_expert"].layers]  # type: ignore[misc]

    def velocity(self, context: Context, points: Tensor, times: Tensor) -> Tensor:
        """Return by which velocity noisy actions move, float32 [N, C, Amax].

        Args:
            context: of N rows.
            points: float32 [N, C, Amax], the noisy actions.
            times: float32 [N], 1 being noise and 0 actions.
        """
        hidden = self._embed_actions(points, times)
        present, size = context.present, hidden.shape[1]
        order = torch.arange(size, device=points.device)
        seen = present[:, None, None].expand(-1, -1, size, -1)
        earlier = (order <= order[:, None]).expand(len(hidden), 1, -1, -1)
        after = turn_by(present.sum(1, keepdim=True) + order, self.text.head_dim)
        alone = turn_by(order.expand(len(hidden), -1), self.text.head_dim)
        expert: Any = self.vlm_with_expert["lm_expert"]
        for layer, before in zip(expert.layers, context.layers, strict=True):
            crosses = layer.self_attn.crosses
            mask = seen if crosses else torch.cat([seen, earlier], dim=-1)
            hidden, _, _ = layer(hidden, alone if crosses else after, mask, before)
        velocities: Tensor = self.action_out_proj(expert.norm(hidden)).float()
        return velocities

    def _embed_actions(self, points: Tensor, times: Tensor) -> Tensor:
        actions = _fed(self.action_in_proj, points)
        moment = _waves(times, actions.shape[-1], self._periods).to(actions.dtype)
        both = torch.cat([actions, moment[:, None].expand_as(actions)], dim=2)
        embedded: Tensor = self.action_time_mlp_out(F.silu(self.action_time_mlp_in(both)))
        return embedded


class SmolVLA(nn.Module):
    """The policy: LeRobot's model, and the statistics that stand beside it.

    Args:
        description: of the checkpoint; weights are random.
        train_expert_only: freeze the vision-language model.
    """

    def __init__(self, description: Description, train_expert_only: bool) -> None:
        super().__init__()
        self.model = FlowModel(description)
        self.statistics = Statistics(description.state_dim, description.action_dim)
        _freeze(self.model, train_expert_only)
        # Nothing reads what the language model's last layer makes of its keys and values.
        last = self.model.vlm.model["text_model"].layers[-1]
        for unused in (last.self_attn.q_proj, last.self_attn.o_proj, last.post_attention_layernorm, last.mlp):
            unused.requires_grad_(False)

    @property
    def blocks(self) -> list[nn.Module]:
        """See :attr:`FlowModel.blocks`."""
        return self.model.blocks

    def read(self, pixels: Tensor, prompt_ids: Tensor, state: Tensor) -> Context:
        """Read what was seen; see :meth:`ContextModel.read`, but of states ``[N, S]`` as they are."""
        return self.model.read(pixels, prompt_ids, self._standard(state))

    def forward(self, pixels: Tensor, prompt_ids: Tensor, state: Tensor, points: Tensor, times: Tensor) -> Tensor:
        """Return velocities, float32 [N·K, C, Amax], of K noisy chunks of each row, row by row.

        Args:
            pixels: see :meth:`read`.
            prompt_ids: see there.
            state: see there.
            points: float32 [N, K, C, Amax].
            times: float32 [N, K].
        """
        context = self.read(pixels, prompt_ids, state).repeated(points.shape[1])
        return self.model.velocity(context, points.flatten(0, 1), times.flatten())

    def _standard(self, state: Tensor) -> Tensor:
        return self.statistics.standard("state", state, self.model.state_proj.in_features)


class SmolVLAValue(nn.Module):
    """The critic: what the language model makes of the state, valued by an MLP, at first 0 for all.

    Args:
        description: of the policy's checkpoint; weights are random.
        train_head_only: freeze the vision-language model.
    """

    def __init__(self, description: Description, train_head_only: bool) -> None:
        super().__init__()
        self.model = ContextModel(description)
        self.statistics = Statistics(description.state_dim, description.action_dim)
        _freeze(self.model, train_head_only)
        size = self.model.text.hidden_size
        last = nn.Linear(size, 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.value = nn.Sequential(nn.Linear(size, size), nn.SiLU(), last)

    @property
    def blocks(self) -> list[nn.Module]:
        """See :attr:`ContextModel.blocks`."""
        return self.model.blocks

    def forward(self, pixels: Tensor, prompt_ids: Tensor, state: Tensor) -> Tensor:
        """Return the values, float32 [N]; see :meth:`SmolVLA.read`."""
        standard = self.statistics.standard("state", state, self.model.state_proj.in_features)
        values: Tensor = self.value(self.model.read(pixels, prompt_ids, standard).hidden[:, -1])
        return values.squeeze(-1).float()


def build_model(description: Description, train_expert_only: bool) -> SmolVLA:
    """Return the model in float32, of a checkpoint's weights, or of random ones by torch's global generator.

    Raises:
        ConfigError: the weights are not those of a SmolVLA of this description.
    """
    if description.folder is None:
        return SmolVLA(description, train_expert_only).eval()
    with torch.device("meta"):  # half a billion random numbers less to draw
        model = SmolVLA(description, train_expert_only).eval()
    statistics = Statistics(description.state_dim, description.action_dim)
    statistics.load_state_dict({**statistics.state_dict(), **description.statistics})
    model.statistics = statistics
    head = model.model.vlm.lm_head.to_empty(device="cpu")
    nn.init.zeros_(head.weight)
    names = {f"statistics.{name}" for name in statistics.state_dict()}
    load_weights(model, [description.folder / WEIGHTS], optional={*names, UNUSED_HEAD})
    return model


def _freeze(model: ContextModel, whole: bool) -> None:
    """Freeze what nothing is read from, or the whole vision-language model."""
    for unused in (model.vlm.lm_head, model.vlm.model["text_model"].norm, *([model.vlm] if whole else [])):
        unused.requires_grad_(False)


def _fed(linear: nn.Linear, values: Tensor) -> Tensor:
    """Return what a layer makes of float32 values, which are given to it in the precision of its weights."""
    out: Tensor = linear(values.to(linear.weight.dtype))
    return out


def _waves(times: Tensor, size: int, periods: tuple[float, float]) -> Tensor:
    """Return sines and cosines of times float32 [N], float32 [N, size], of periods on a logarithmic scale."""
    shares = torch.linspace(0.0, 1.0, size // 2, dtype=torch.float64, device=times.device)
    angles = 2 * torch.pi * times.double()[:, None] / (periods[0] * (periods[1] / periods[0]) ** shares)
    return torch.cat([angles.sin(), angles.cos()], dim=1).float()
