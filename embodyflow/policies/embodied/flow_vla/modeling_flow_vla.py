"""Base of models that read an observation once and give the velocity at any point between noise and actions.

A vision-language model reads the observation. An action expert, whose layers attend to those of the language model at
the same depth, gives the velocity (π0, Black et al., 2024, arXiv:2410.24164, section IV). Each kind of policy chooses
its embeddings and attention masks; the rest is here. Parameters have the names of LeRobot's checkpoints.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from embodyflow.policies.embodied.flow_vla.checkpoint_flow_vla import Description
from embodyflow.policies.embodied.flow_vla.layers_flow_vla import KeysAndValues
from embodyflow.policies.embodied.lerobot_processors import WEIGHTS
from embodyflow.policies.pretrained.checkpoints import is_outline, load_weights


@dataclass(frozen=True)
class Context:
    """Result of reading an observation: P embeddings that actions attend to.

    Attributes:
        hidden: Outputs of the last layer, float [N, p, D]; the last one has seen the state.
        present: Mask without padding, bool [N, P].
        layers: Keys and values of each layer.
    """

    hidden: Tensor
    present: Tensor
    layers: Sequence[KeysAndValues]

    @property
    def last(self) -> Tensor:
        """The last output, float [N, D]; it is a copy, because FSDP warns of views that leave a model."""
        return self.hidden[:, -1].clone()

    def repeated(self, times: int) -> "Context":
        """Return the context with each row repeated ``times`` times."""
        hidden, present = (each.repeat_interleave(times, dim=0) for each in (self.hidden, self.present))
        layers = [(k.repeat_interleave(times, dim=0), v.repeat_interleave(times, dim=0)) for k, v in self.layers]
        return Context(hidden, present, layers)


class ContextModel(nn.Module, ABC):
    """Base of policy and critic: the model that reads images, instruction and state.

    Attributes:
        size: D, features of :attr:`Context.hidden`.
        state_size: Smax, features that states are padded to.
    """

    size: int
    state_size: int

    @property
    @abstractmethod
    def vlm(self) -> Any:
        """The vision-language model."""

    @property
    @abstractmethod
    def blocks(self) -> list[nn.Module]:
        """Transformer blocks of the model."""

    @property
    @abstractmethod
    def tower(self) -> Any:
        """The vision tower."""

    @property
    def patches_per_embedding(self) -> int:
        """Patches of an image that become one embedding of the language model."""
        return 1

    @property
    def state_embeddings(self) -> int:
        """Embeddings of the state, beside those of images and prompt."""
        return 1

    @property
    @abstractmethod
    def unused(self) -> list[nn.Module]:
        """Parts of the checkpoint that nothing depends on."""

    @abstractmethod
    def read(self, pixels: Tensor, prompt_ids: Tensor, state: Tensor) -> Context:
        """Read an observation.

        Args:
            pixels: Pixels of K images, float32 [N, K, 3, H, W].
            prompt_ids: Prompt, int64 [N, I]; 0 is padding.
            state: Normalised and padded state, float32 [N, Smax].
        """


class FlowModel(ContextModel):
    """Model in LeRobot's form: the context model, and an expert between projections of actions."""

    def velocity(self, context: Context, points: Tensor, times: Tensor) -> Tensor:
        """Return the velocity of noisy actions, float32 [N, H, Amax].

        Args:
            context: Context of N rows.
            points: Noisy actions, float32 [N, H, Amax].
            times: Times from 1, noise, to 0, actions, float32 [N].
        """
        actions = apply_linear(self.action_in_proj, points)
        moments = time_embedding(times, actions.shape[-1], self._periods).to(actions.dtype)
        velocities: Tensor = self.action_out_proj(self.refine(context, actions, moments)).float()
        return velocities

    @abstractmethod
    def refine(self, context: Context, actions: Tensor, moments: Tensor) -> Tensor:
        """Return the expert's normalised outputs, float [N, H, D].

        Args:
            context: Context of N rows.
            actions: Embeddings of noisy actions, float [N, H, D].
            moments: Sines and cosines of their times, float [N, D].
        """

    def _add_projections(self, config: Mapping[str, Any], size: int) -> None:
        """Add the projections of noisy actions and of velocities.

        Args:
            config: Content of ``config.json``.
            size: Features of the expert.
        """
        self.action_in_proj = nn.Linear(config["max_action_dim"], size)
        self.action_out_proj = nn.Linear(size, config["max_action_dim"])
        self._periods = (config["min_period"], config["max_period"])


class TimedActionsModel(FlowModel):
    """Base of models in which an MLP joins each noisy action with its time, before the expert."""

    def join(self, actions: Tensor, moments: Tensor) -> Tensor:
        """Return embeddings of actions and their time, float [N, H, D]; see :meth:`FlowModel.refine`."""
        both = torch.cat([actions, moments[:, None].expand_as(actions)], dim=2)
        joined: Tensor = self.action_time_mlp_out(F.silu(self.action_time_mlp_in(both)))
        return joined

    def _add_projections(self, config: Mapping[str, Any], size: int) -> None:
        super()._add_projections(config, size)
        self.action_time_mlp_in = nn.Linear(2 * size, size)
        self.action_time_mlp_out = nn.Linear(size, size)


class FlowVLA(nn.Module):
    """Model of the policy: LeRobot's model, and the statistics that LeRobot keeps beside it.

    Args:
        model: Model of random weights.
        description: Description that the model was built from.
        train_expert_only: Whether to freeze the vision-language model.
    """

    forward_methods = ("features", "forward_with_features")

    def __init__(self, model: FlowModel, description: Description, train_expert_only: bool) -> None:
        super().__init__()
        self.model = model
        self.statistics = description.new_statistics()
        _freeze(self.model, train_expert_only)

    @property
    def blocks(self) -> list[nn.Module]:
        """The transformer blocks of vision tower, language model and expert."""
        return self.model.blocks

    def read(self, pixels: Tensor, prompt_ids: Tensor, state: Tensor) -> Context:
        """Read an observation; see :meth:`ContextModel.read`, but with the environment's states ``[N, S]``."""
        return self.model.read(pixels, prompt_ids, _standardise_state(self, state))

    def forward(self, pixels: Tensor, prompt_ids: Tensor, state: Tensor, points: Tensor, times: Tensor) -> Tensor:
        """Return the velocities of K noisy chunks per row, float32 [N·K, H, Amax], row by row.

        Args:
            pixels: Pixels, see :meth:`read`.
            prompt_ids: Prompt, see there.
            state: State, see there.
            points: Noisy chunks, float32 [N, K, H, Amax].
            times: Times of the chunks, float32 [N, K].
        """
        return self._velocities(self.read(pixels, prompt_ids, state), points, times)

    def features(self, pixels: Tensor, prompt_ids: Tensor, state: Tensor) -> Tensor:
        """Return the context model's last output, which has seen everything, float [N, D]; see :meth:`read`."""
        return self.read(pixels, prompt_ids, state).last

    def forward_with_features(
        self, pixels: Tensor, prompt_ids: Tensor, state: Tensor, points: Tensor, times: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the results of :meth:`forward` and of :meth:`features`; the observation is read once."""
        context = self.read(pixels, prompt_ids, state)
        return self._velocities(context, points, times), context.last

    def _velocities(self, context: Context, points: Tensor, times: Tensor) -> Tensor:
        repeated = context.repeated(points.shape[1])
        return self.model.velocity(repeated, points.flatten(0, 1), times.flatten())


class FlowVLAValue(nn.Module):
    """Model of the critic: an MLP values the context model's last output; values start at 0.

    Args:
        model: Context model of random weights.
        description: Description that the model was built from.
        train_head_only: Whether to freeze the vision-language model.
    """

    def __init__(self, model: ContextModel, description: Description, train_head_only: bool) -> None:
        super().__init__()
        self.model = model
        self.statistics = description.new_statistics()
        _freeze(self.model, train_head_only)
        last = nn.Linear(model.size, 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.value = nn.Sequential(nn.Linear(model.size, model.size), nn.SiLU(), last)

    @property
    def blocks(self) -> list[nn.Module]:
        """Transformer blocks of the context model."""
        return self.model.blocks

    def forward(self, pixels: Tensor, prompt_ids: Tensor, state: Tensor) -> Tensor:
        """Return the values, float32 [N]; see :meth:`FlowVLA.read`."""
        context = self.model.read(pixels, prompt_ids, _standardise_state(self, state))
        values: Tensor = self.value(context.hidden[:, -1])
        return values.squeeze(-1).float()


def load_checkpoint(
    make: Callable[[], FlowVLA],
    description: Description,
    optional: Mapping[str, Tensor],
    translate: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None,
) -> FlowVLA:
    """Return a model in float32 with a checkpoint's weights and statistics.

    Args:
        make: Function that builds the model, of random weights.
        description: Description that it builds from, with ``folder``.
        optional: Values of the weights that the checkpoint may lack.
        translate: Function from the checkpoint's weights to the model's, by name.

    Raises:
        ConfigError: The weights are not those of a model of this description.
    """
    assert description.folder is not None
    with torch.device("meta"):  # saves drawing half a billion random numbers or more
        model = make()
    statistics = description.new_statistics()
    names = {f"statistics.{name}" for name in statistics.state_dict()}
    if not is_outline():
        statistics.load_state_dict({**statistics.state_dict(), **description.statistics})
        model.statistics = statistics
        model.load_state_dict(dict(optional), strict=False, assign=True)
    load_weights(model, [description.folder / WEIGHTS], optional={*names, *optional}, translate=translate)
    return model


def apply_linear(linear: nn.Linear, values: Tensor) -> Tensor:
    """Apply a layer to float32 values, in the precision of its weights."""
    out: Tensor = linear(values.to(linear.weight.dtype))
    return out


def apply_tower(tower: Any, pixels: Tensor) -> Tensor:
    """Apply a vision tower to images float32 [n, 3, H, W], in its own precision; return float [n, p, D]."""
    seen: Tensor = tower(pixel_values=pixels.to(tower.embeddings.patch_embedding.weight.dtype)).last_hidden_state
    return seen


def time_embedding(times: Tensor, size: int, periods: tuple[float, float]) -> Tensor:
    """Return sines and cosines of times float32 [N], float32 [N, size]; periods lie on a logarithmic scale."""
    shares = torch.linspace(0.0, 1.0, size // 2, dtype=torch.float64, device=times.device)
    angles = 2 * torch.pi * times.double()[:, None] / (periods[0] * (periods[1] / periods[0]) ** shares)
    return torch.cat([angles.sin(), angles.cos()], dim=1).float()


def positions(present: Tensor) -> Tensor:
    """Return the position of each embedding among those that are present, int64 [N, P], for a mask bool [N, P]."""
    return (present.long().cumsum(-1) - 1).clamp(min=0)


def _standardise_state(model: "FlowVLA | FlowVLAValue", state: Tensor) -> Tensor:
    return model.statistics.standardise("state", state, model.model.state_size)


def _freeze(model: ContextModel, whole: bool) -> None:
    """Freeze the parts that nothing depends on, or the whole vision-language model."""
    for unused in (*model.unused, *([model.vlm] if whole else [])):
        unused.requires_grad_(False)
