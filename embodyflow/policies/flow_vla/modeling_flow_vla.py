"""Models that read what is seen once and then say, at any point between noise and actions, by which velocity it moves.

A vision-language model reads, an action expert moves, and its layers attend to those of the language model at the same
depth (π0, Black et al., 2024, arXiv:2410.24164, section IV). Which embeddings there are and who attends to whom is the
affair of each kind of policy; here is what is around it. Parameters have the names of LeRobot's checkpoints.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from embodyflow.policies.checkpoints import load_weights
from embodyflow.policies.flow_vla.checkpoint_flow_vla import WEIGHTS, Description
from embodyflow.policies.flow_vla.layers_flow_vla import KeysAndValues


@dataclass(frozen=True)
class Context:
    """What was read, P embeddings that actions attend to.

    Attributes:
        hidden: float [N, p, D], what became of embeddings of them; the last one is the state's.
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


class ContextModel(nn.Module, ABC):
    """What policy and critic share: who reads images, instruction and state.

    Attributes:
        size: D, features of :attr:`Context.hidden`.
        state_proj: makes an embedding of a padded state.
    """

    size: int
    state_proj: nn.Linear

    @property
    @abstractmethod
    def vlm(self) -> Any:
        """The vision-language model."""

    @property
    @abstractmethod
    def blocks(self) -> list[nn.Module]:
        """Its transformer blocks."""

    @property
    @abstractmethod
    def unread(self) -> list[nn.Module]:
        """Parts that the checkpoint has and nothing is read from."""

    @abstractmethod
    def read(self, pixels: Tensor, prompt_ids: Tensor, state: Tensor) -> Context:
        """Read what was seen.

        Args:
            pixels: float32 [N, K, 3, H, W], K images.
            prompt_ids: int64 [N, I]; 0 is padding.
            state: float32 [N, Smax], standardised.
        """


class FlowModel(ContextModel):
    """The model as LeRobot has it: who reads, and an expert between projections of actions."""

    def velocity(self, context: Context, points: Tensor, times: Tensor) -> Tensor:
        """Return by which velocity noisy actions move, float32 [N, H, Amax].

        Args:
            context: of N rows.
            points: float32 [N, H, Amax], the noisy actions.
            times: float32 [N], 1 being noise and 0 actions.
        """
        actions = fed(self.action_in_proj, points)
        moment = waves(times, actions.shape[-1], self._periods).to(actions.dtype)
        both = torch.cat([actions, moment[:, None].expand_as(actions)], dim=2)
        embedded = self.action_time_mlp_out(F.silu(self.action_time_mlp_in(both)))
        velocities: Tensor = self.action_out_proj(self.refine(context, embedded)).float()
        return velocities

    @abstractmethod
    def refine(self, context: Context, actions: Tensor) -> Tensor:
        """Return what the expert makes of embeddings of noisy actions, float [N, H, D], normalised."""

    def _add_projections(self, config: Mapping[str, Any], size: int) -> None:
        """Add what noisy actions and their time come in by, and velocities go out by.

        Args:
            config: ``config.json``.
            size: of the expert.
        """
        self.action_in_proj = nn.Linear(config["max_action_dim"], size)
        self.action_out_proj = nn.Linear(size, config["max_action_dim"])
        self.action_time_mlp_in = nn.Linear(2 * size, size)
        self.action_time_mlp_out = nn.Linear(size, size)
        self._periods = (config["min_period"], config["max_period"])


class FlowVLA(nn.Module):
    """The policy: LeRobot's model, and the statistics that stand beside it.

    Args:
        model: of random weights.
        description: that it was built by.
        train_expert_only: freeze the vision-language model.
    """

    def __init__(self, model: FlowModel, description: Description, train_expert_only: bool) -> None:
        super().__init__()
        self.model = model
        self.statistics = Statistics(description.state_dim, description.action_dim)
        _freeze(self.model, train_expert_only)

    @property
    def blocks(self) -> list[nn.Module]:
        """The transformer blocks of vision tower, language model and expert."""
        return self.model.blocks

    def read(self, pixels: Tensor, prompt_ids: Tensor, state: Tensor) -> Context:
        """Read what was seen; see :meth:`ContextModel.read`, but of states ``[N, S]`` as they are."""
        return self.model.read(pixels, prompt_ids, _standard(self, state))

    def forward(self, pixels: Tensor, prompt_ids: Tensor, state: Tensor, points: Tensor, times: Tensor) -> Tensor:
        """Return velocities, float32 [N·K, H, Amax], of K noisy chunks of each row, row by row.

        Args:
            pixels: see :meth:`read`.
            prompt_ids: see there.
            state: see there.
            points: float32 [N, K, H, Amax].
            times: float32 [N, K].
        """
        context = self.read(pixels, prompt_ids, state).repeated(points.shape[1])
        return self.model.velocity(context, points.flatten(0, 1), times.flatten())


class FlowVLAValue(nn.Module):
    """The critic: what the model makes of the state, valued by an MLP, at first 0 for all.

    Args:
        model: of random weights.
        description: that it was built by.
        train_head_only: freeze the vision-language model.
    """

    def __init__(self, model: ContextModel, description: Description, train_head_only: bool) -> None:
        super().__init__()
        self.model = model
        self.statistics = Statistics(description.state_dim, description.action_dim)
        _freeze(self.model, train_head_only)
        last = nn.Linear(model.size, 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.value = nn.Sequential(nn.Linear(model.size, model.size), nn.SiLU(), last)

    @property
    def blocks(self) -> list[nn.Module]:
        """See :attr:`ContextModel.blocks`."""
        return self.model.blocks

    def forward(self, pixels: Tensor, prompt_ids: Tensor, state: Tensor) -> Tensor:
        """Return the values, float32 [N]; see :meth:`FlowVLA.read`."""
        context = self.model.read(pixels, prompt_ids, _standard(self, state))
        values: Tensor = self.value(context.hidden[:, -1])
        return values.squeeze(-1).float()


def load_checkpoint(
    make: Callable[[], FlowVLA],
    description: Description,
    optional: Mapping[str, Tensor],
    translate: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None,
) -> FlowVLA:
    """Return a model in float32 of a checkpoint's weights and statistics.

    Args:
        make: makes it, of random weights.
        description: that it is made by, with ``folder``.
        optional: weights that the checkpoint may lack, and what they are then.
        translate: makes the checkpoint's weights by its names those of the model by its own.

    Raises:
        ConfigError: the weights are not those of a model of this description.
    """
    assert description.folder is not None
    with torch.device("meta"):  # half a billion random numbers, or more, less to draw
        model = make()
    statistics = Statistics(description.state_dim, description.action_dim)
    statistics.load_state_dict({**statistics.state_dict(), **description.statistics})
    model.statistics = statistics
    model.load_state_dict(dict(optional), strict=False, assign=True)
    names = {f"statistics.{name}" for name in statistics.state_dict()}
    load_weights(model, [description.folder / WEIGHTS], optional={*names, *optional}, translate=translate)
    return model


def fed(linear: nn.Linear, values: Tensor) -> Tensor:
    """Return what a layer makes of float32 values, which are given to it in the precision of its weights."""
    out: Tensor = linear(values.to(linear.weight.dtype))
    return out


def looked_at(tower: Any, pixels: Tensor) -> Tensor:
    """Return what a vision tower makes, float [n, p, D], of images float32 [n, 3, H, W], in its own precision."""
    seen: Tensor = tower(pixel_values=pixels.to(tower.embeddings.patch_embedding.weight.dtype)).last_hidden_state
    return seen


def waves(times: Tensor, size: int, periods: tuple[float, float]) -> Tensor:
    """Return sines and cosines of times float32 [N], float32 [N, size], of periods on a logarithmic scale."""
    shares = torch.linspace(0.0, 1.0, size // 2, dtype=torch.float64, device=times.device)
    angles = 2 * torch.pi * times.double()[:, None] / (periods[0] * (periods[1] / periods[0]) ** shares)
    return torch.cat([angles.sin(), angles.cos()], dim=1).float()


def positions(present: Tensor) -> Tensor:
    """Return the place of each embedding among those that are no padding, int64 [N, P], of bool [N, P]."""
    return (present.long().cumsum(-1) - 1).clamp(min=0)


def _standard(model: "FlowVLA | FlowVLAValue", state: Tensor) -> Tensor:
    return model.statistics.standard("state", state, model.model.state_proj.in_features)


def _freeze(model: ContextModel, whole: bool) -> None:
    """Freeze what nothing is read from, or the whole vision-language model."""
    for unused in (*model.unread, *([model.vlm] if whole else [])):
        unused.requires_grad_(False)
