"""Model of π0.5: a PaliGemma reads images and prompt, an expert of the same depth turns noise into actions.

It differs from π0 in two ways (Black et al., 2025, arXiv:2504.16054, sections IV and appendix E; the released model's
code is openpi's). The state is a part of the prompt, so the expert reads nothing but actions. And their time scales and
gates the expert's normalisations, in place of being mixed into the actions. Parameters have the names of LeRobot's
checkpoints.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GemmaConfig

from embodyflow.policies.embodied.flow_vla import modeling_flow_vla
from embodyflow.policies.embodied.flow_vla.checkpoint_flow_vla import Description
from embodyflow.policies.embodied.flow_vla.layers_flow_vla import rotary_embedding
from embodyflow.policies.embodied.flow_vla.modeling_flow_vla import Context, FlowVLA, positions
from embodyflow.policies.embodied.flow_vla.paligemma_flow_vla import (
    PaliGemmaReader,
    behind,
    expert_config,
    load_checkpoint,
)
from embodyflow.policies.embodied.pi05.layers_pi05 import AdaptiveLayer, AdaptiveNorm
from embodyflow.policies.embodied.pi05.prompt_pi05 import StatePrompt


class Expert(nn.Module):
    """The action expert."""

    def __init__(self, config: GemmaConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(AdaptiveLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = AdaptiveNorm(config.hidden_size, config.rms_norm_eps)


class ContextModel(PaliGemmaReader):
    """Base of policy and critic: the PaliGemma.

    Args:
        description: Description of the checkpoint; weights are random.
        prompt: Writer of states into prompts.
    """

    def __init__(self, description: Description, prompt: StatePrompt) -> None:
        super().__init__(description)
        self.prompt = prompt
        self.size, self._head_dim = self.language.norm.weight.shape[0], expert_config(description).head_dim

    @property
    def blocks(self) -> list[nn.Module]:
        """Transformer blocks of vision tower and language model."""
        return [*self.tower.encoder.layers, *self.language.layers]

    @property
    def state_embeddings(self) -> int:
        """0: the state is in the prompt."""
        return 0

    @property
    def unused(self) -> list[nn.Module]:
        """None: the output for the last token depends on everything."""
        return []

    def read(self, pixels: Tensor, prompt_ids: Tensor, state: Tensor) -> Context:
        """Read an observation; see :meth:`.modeling_flow_vla.ContextModel.read`.

        The prompt is its first part alone, of :meth:`.prompt_pi05.StatePrompt.begin`.
        """
        hidden, present = self.embed(pixels, self.prompt(prompt_ids, state))
        mask = present[:, None, None].expand(-1, -1, present.shape[1], -1)
        rotary = rotary_embedding(positions(present), self._head_dim)
        layers = []
        for layer in self.language.layers:
            hidden, keys, values = layer(hidden, rotary, mask)
            layers.append((keys, values))
        last = hidden[torch.arange(len(hidden), device=hidden.device), present.sum(1) - 1]
        return Context(self.language.norm(last)[:, None], present, layers)


class FlowModel(ContextModel, modeling_flow_vla.FlowModel):
    """Model of π0.5 in LeRobot's form.

    Args:
        description: Description of the checkpoint; weights are random.
        prompt: Writer of states into prompts.
    """

    def __init__(self, description: Description, prompt: StatePrompt) -> None:
        super().__init__(description, prompt)
        expert = expert_config(description)
        self.add_expert(Expert(expert))
        self._add_projections(description.config, expert.hidden_size)
        self.time_mlp_in = nn.Linear(expert.hidden_size, expert.hidden_size)
        self.time_mlp_out = nn.Linear(expert.hidden_size, expert.hidden_size)

    @property
    def blocks(self) -> list[nn.Module]:
        """Transformer blocks of vision tower, language model and expert."""
        return [*super().blocks, *self.expert.layers]

    @property
    def unused(self) -> list[nn.Module]:
        """Parts of the language model after its last keys and values."""
        return [self.language.norm, *self.language.layers[-1].after_keys_and_values]

    def refine(self, context: Context, actions: Tensor, moments: Tensor) -> Tensor:
        """Return the expert's outputs; see :meth:`.modeling_flow_vla.FlowModel.refine`."""
        condition = F.silu(self.time_mlp_out(F.silu(self.time_mlp_in(moments))))
        rotary, mask = behind(context, actions.shape[1], self._head_dim)
        for layer, before in zip(self.expert.layers, context.layers, strict=True):
            actions = layer(actions, condition, rotary, mask, before)
        normalised: Tensor = self.expert.norm(actions, condition)[0]
        return normalised


class PI05(FlowVLA):
    """Model of the policy.

    Args:
        description: Description of the checkpoint; weights are random.
        prompt: Writer of states into prompts.
        train_expert_only: Whether to freeze the PaliGemma.
    """

    def __init__(self, description: Description, prompt: StatePrompt, train_expert_only: bool) -> None:
        super().__init__(FlowModel(description, prompt), description, train_expert_only)


def build_model(description: Description, prompt: StatePrompt, train_expert_only: bool) -> FlowVLA:
    """Return the model in float32, with a checkpoint's weights, or random ones from torch's global generator.

    Raises:
        ConfigError: The weights are not those of a π0.5 of this description.
    """
    if description.folder is None:
        return PI05(description, prompt, train_expert_only).eval()
    return load_checkpoint(lambda: PI05(description, prompt, train_expert_only), description).eval()
