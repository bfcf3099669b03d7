"""Model of π0: a PaliGemma reads images and instruction, an expert of the same depth turns noise into actions.

Three blocks of embeddings attend to themselves and to the blocks before: images and instruction, which the PaliGemma
reads; the state, and the noisy actions, which the expert reads (Black et al., 2024, arXiv:2410.24164, section IV and
appendix B). The first two do not depend on the actions and their time, so they are computed once for all denoising
steps. Every action of a chunk attends to every other. Parameters have the names of LeRobot's checkpoints.
"""

import torch
from torch import Tensor, nn

from embodyflow.policies.embodied.flow_vla.checkpoint_flow_vla import Description
from embodyflow.policies.embodied.flow_vla.layers_flow_vla import rotary_embedding
from embodyflow.policies.embodied.flow_vla.modeling_flow_vla import (
    Context,
    FlowVLA,
    TimedActionsModel,
    apply_linear,
    positions,
)
from embodyflow.policies.embodied.flow_vla.paligemma_flow_vla import (
    GemmaModel,
    PaliGemmaReader,
    behind,
    expert_config,
    load_checkpoint,
)


class ContextModel(PaliGemmaReader):
    """Base of policy and critic: the PaliGemma, and the expert that reads the state.

    Args:
        description: Description of the checkpoint; weights are random.
    """

    def __init__(self, description: Description) -> None:
        super().__init__(description)
        expert = expert_config(description)
        self.add_expert(GemmaModel(expert))
        self.size, self._head_dim = expert.hidden_size, expert.head_dim
        self.state_proj = nn.Linear(self.state_size, self.size)

    @property
    def blocks(self) -> list[nn.Module]:
        """Transformer blocks of vision tower, language model and expert."""
        return [*self.tower.encoder.layers, *self.language.layers, *self.expert.layers]

    @property
    def unused(self) -> list[nn.Module]:
        """Parts of the language model after its last keys and values."""
        return [self.language.norm, *self.language.layers[-1].after_keys_and_values]

    def read(self, pixels: Tensor, prompt_ids: Tensor, state: Tensor) -> Context:
        """Read an observation; see :meth:`.modeling_flow_vla.ContextModel.read`."""
        hidden, present = self.embed(pixels, prompt_ids)
        token = apply_linear(self.state_proj, state)[:, None]
        everything = torch.cat([present, present.new_ones(len(present), 1)], dim=1)
        mask = present[:, None, None].expand(-1, -1, present.shape[1], -1)
        rotary = rotary_embedding(positions(present), self._head_dim)
        after = rotary_embedding(present.sum(1, keepdim=True), self._head_dim)
        layers = []
        for reading, moving in zip(self.language.layers, self.expert.layers, strict=True):
            hidden, *before = reading(hidden, rotary, mask)
            token, keys, values = moving(token, after, everything[:, None, None], tuple(before))
            layers.append((keys, values))
        return Context(self.expert.norm(token), everything, layers)


class FlowModel(ContextModel, TimedActionsModel):
    """Model of π0 in LeRobot's form.

    Args:
        description: Description of the checkpoint; weights are random.
    """

    def __init__(self, description: Description) -> None:
        super().__init__(description)
        self._add_projections(description.config, self.size)

    def refine(self, context: Context, actions: Tensor, moments: Tensor) -> Tensor:
        """Return the expert's outputs; see :meth:`.modeling_flow_vla.FlowModel.refine`."""
        actions = self.join(actions, moments)
        rotary, mask = behind(context, actions.shape[1], self._head_dim)
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
    return load_checkpoint(lambda: PI0(description, train_expert_only), description).eval()
