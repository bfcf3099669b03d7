"""Model of ACT (Zhao et al., 2023, arXiv:2304.13705): a chunk of actions from one observation, by a conditional VAE.

The encoder reads a latent, the robot's state, the environment's state and the features of images. The decoder turns
learned queries, one for each action of a chunk, into actions. In cloning the latent comes from a further encoder of the
demonstrated chunk; in acting it is zero, the mean of its prior. The loss is the absolute error, the negative
log-density of a Laplace distribution of a fixed scale; here the scale is a parameter, so that RL can sample actions and
has their densities. Parameters have the names of LeRobot's files.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from embodyflow.policies.embodied.act.backbone_act import ResNet
from embodyflow.policies.embodied.act.checkpoint_act import EXPLORATION, Description, image_names
from embodyflow.policies.embodied.act.configuration_act import ACTConfig
from embodyflow.policies.embodied.act.layers_act import Decoder, Encoder, image_positions, sinusoids
from embodyflow.policies.embodied.act.statistics_act import ACTStatistics
from embodyflow.policies.embodied.lerobot_processors import WEIGHTS
from embodyflow.policies.pretrained.checkpoints import load_weights

STATISTICS, SCALE = "statistics.", "log_scale"
"""Beginnings of the names of values that LeRobot's ``model.safetensors`` lacks."""


class Reader(nn.Module):
    """The encoder of observations.

    Args:
        description: Sizes.
    """

    def __init__(self, description: Description) -> None:
        super().__init__()
        sizes = description.config
        size, own, rest = sizes["dim_model"], description.robot_state_dim, description.environment_state_dim
        self.encoder = Encoder(sizes["n_encoder_layers"], size, sizes["n_heads"], sizes["dim_feedforward"])
        self.encoder_robot_state_input_proj = nn.Linear(own, size) if own else None
        self.encoder_env_state_input_proj = nn.Linear(rest, size) if rest else None
        self.encoder_latent_input_proj = nn.Linear(sizes["latent_dim"], size)
        self.encoder_1d_feature_pos_embed = nn.Embedding(1 + bool(own) + bool(rest), size)
        self.backbone: ResNet | None = None
        if image_names(sizes):
            self.backbone = ResNet(sizes["vision_backbone"], sizes["backbone_width"])
            self.encoder_img_feat_input_proj = nn.Conv2d(self.backbone.size, size, 1)
        self._own, self._latent_dim = own, sizes["latent_dim"]

    def read(self, state: Tensor, images: Tensor | None, latent: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the encoder's outputs, float [N, k, D], and the tokens' positions, float [k, D].

        Args:
            state: Standardised states, float [N, S].
            images: Standardised images, float [N, K, 3, h, w]; ``None`` without cameras.
            latent: Latents, float [N, Z]; ``None`` for zeros.
        """
        if latent is None:
            latent = state.new_zeros(len(state), self._latent_dim)
        tokens = [self.encoder_latent_input_proj(latent)[:, None]]
        if self.encoder_robot_state_input_proj is not None:
            tokens.append(self.encoder_robot_state_input_proj(state[:, : self._own])[:, None])
        if self.encoder_env_state_input_proj is not None:
            tokens.append(self.encoder_env_state_input_proj(state[:, self._own :])[:, None])
        positions = [self.encoder_1d_feature_pos_embed.weight]
        if self.backbone is not None:
            assert images is not None
            for image in images.unbind(1):
                features = self.encoder_img_feat_input_proj(self.backbone(image))
                tokens.append(features.flatten(2).transpose(1, 2))
                positions.append(image_positions(features))
        places = torch.cat([each.to(state.dtype) for each in positions])
        return self.encoder(torch.cat(tokens, dim=1), places), places


class ACT(Reader):
    """Maps observations, and in cloning demonstrated chunks, to standardised actions; names are LeRobot's."""

    vae_encoder_pos_enc: Tensor

    def __init__(self, description: Description) -> None:
        super().__init__(description)
        sizes = description.config
        size, action_dim = sizes["dim_model"], description.action_dim
        layers = (size, sizes["n_heads"], sizes["dim_feedforward"])
        self.decoder = Decoder(sizes["n_decoder_layers"], *layers)
        self.decoder_pos_embed = nn.Embedding(description.horizon, size)
        self.action_head = nn.Linear(size, action_dim)
        self.vae_encoder: Encoder | None = None
        if sizes["use_vae"]:
            self.vae_encoder = Encoder(sizes["n_vae_encoder_layers"], *layers)
            self.vae_encoder_cls_embed = nn.Embedding(1, size)
            self.vae_encoder_robot_state_input_proj = nn.Linear(self._own, size) if self._own else None
            self.vae_encoder_action_input_proj = nn.Linear(action_dim, size)
            self.vae_encoder_latent_output_proj = nn.Linear(size, 2 * sizes["latent_dim"])
            num_tokens = 1 + bool(self._own) + description.horizon
            self.register_buffer("vae_encoder_pos_enc", sinusoids(num_tokens, size)[None])

    def act(self, state: Tensor, images: Tensor | None, latent: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return a chunk, float [N, H, A], and the encoder's output for the latent, float [N, D]; see :meth:`read`."""
        context, positions = self.read(state, images, latent)
        actions: Tensor = self.action_head(self.decoder(self.decoder_pos_embed.weight, context, positions))
        return actions, context[:, 0]

    def encode(self, state: Tensor, actions: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log-variance of the latents of demonstrated chunks, both float [N, Z].

        Args:
            state: Standardised states, float [N, S].
            actions: Standardised actions, float [N, H, A].
            mask: Actions that count, bool [N, H].
        """
        assert self.vae_encoder is not None
        tokens = [self.vae_encoder_cls_embed.weight.expand(len(state), 1, -1)]
        if self.vae_encoder_robot_state_input_proj is not None:
            tokens.append(self.vae_encoder_robot_state_input_proj(state[:, : self._own])[:, None])
        seen = mask.new_ones(len(mask), len(tokens))
        tokens.append(self.vae_encoder_action_input_proj(actions))
        counted = torch.cat([seen, mask], dim=1)
        places = self.vae_encoder_pos_enc[0].to(state.dtype)
        hidden = self.vae_encoder(torch.cat(tokens, dim=1), places, counted)
        mean, log_variance = self.vae_encoder_latent_output_proj(hidden[:, 0]).chunk(2, dim=-1)
        return mean, log_variance


class ACTModel(nn.Module):
    """ACT with the statistics of its inputs and the scales of its actions.

    Args:
        config: Configuration of the policy.
        description: Description of the checkpoint; weights are random.
    """

    forward_methods = ("features", "forward_with_features", "reconstruct")

    def __init__(self, config: ACTConfig, description: Description) -> None:
        super().__init__()
        self.model = ACT(description)
        self.statistics = ACTStatistics(config.state_dim, config.action_dim, len(config.cameras))
        self.log_scale = nn.Parameter(torch.full((config.action_dim,), math.log(config.initial_scale)))

    @property
    def blocks(self) -> list[nn.Module]:
        """The layers of all transformers."""
        blocks = [*self.model.encoder.layers, *self.model.decoder.layers]
        return blocks if self.model.vae_encoder is None else [*blocks, *self.model.vae_encoder.layers]

    @property
    def size(self) -> int:
        """D, features of a token."""
        return self.model.action_head.in_features

    def forward(self, state: Tensor, pixels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the medians of standardised chunks, float32 [N, H, A], and their scales, float32 [A].

        Args:
            state: States, float32 [N, S].
            pixels: Images of K cameras, uint8 [N, K, h, w, 3]; ``None`` without cameras.
        """
        medians, scales, _ = self.forward_with_features(state, pixels)
        return medians, scales

    def forward_with_features(self, state: Tensor, pixels: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return medians, scales, and the encoder's output for the latent, float [N, D]; see :meth:`forward`."""
        actions, features = self.model.act(*self._standardised(state, pixels))
        return actions.float(), self.log_scale.float().exp(), features.clone()

    def features(self, state: Tensor, pixels: Tensor | None = None) -> Tensor:
        """Return the encoder's output for the latent, float [N, D]; see :meth:`forward`."""
        context, _ = self.model.read(*self._standardised(state, pixels))
        return context[:, 0].clone()

    def reconstruct(
        self, state: Tensor, pixels: Tensor | None, actions: Tensor, mask: Tensor, normals: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return a chunk decoded from the latent of a demonstrated one, float32 [N, H, A], and what the loss needs.

        Args:
            state: See :meth:`forward`.
            pixels: See :meth:`forward`.
            actions: Demonstrated standardised actions, float32 [N, H, A].
            mask: Actions that count, bool [N, H].
            normals: Standard normals of the latents, float32 [N, Z].

        Returns:
            The chunk, the divergence of the latents' distribution from a standard normal, float32 [N] in nats (Kingma
            and Welling, 2013, arXiv:1312.6114, appendix B; 0 without an encoder), and the scales.
        """
        seen, images = self._standardised(state, pixels)
        if self.model.vae_encoder is None:
            latent, divergence = None, actions.new_zeros(len(actions))
        else:
            mean, log_variance = self.model.encode(seen, actions.to(seen.dtype), mask)
            latent = mean + (log_variance / 2).exp() * normals.to(mean.dtype)
            divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).float().sum(-1)
        decoded, _ = self.model.act(seen, images, latent)
        return decoded.float(), divergence, self.log_scale.float().exp()

    def _standardised(self, state: Tensor, pixels: Tensor | None) -> tuple[Tensor, Tensor | None]:
        dtype = self.model.action_head.weight.dtype
        seen = self.statistics.standardise("state", state, state.shape[-1]).to(dtype)
        return seen, None if pixels is None else self.statistics.images(pixels).to(dtype)


class ACTValue(nn.Module):
    """Maps observations to values, which are 0 before any training, by an encoder of its own.

    Args:
        config: Configuration of the policy.
        description: Description of the policy's model.
    """

    def __init__(self, config: ACTConfig, description: Description) -> None:
        super().__init__()
        self.model = Reader(description)
        self.statistics = ACTStatistics(config.state_dim, config.action_dim, len(config.cameras))
        self.value = nn.Linear(description.config["dim_model"], 1)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)

    def forward(self, state: Tensor, pixels: Tensor | None = None) -> Tensor:
        """Return the values, float32 [N]; see :meth:`ACTModel.forward`."""
        dtype = self.value.weight.dtype
        seen = self.statistics.standardise("state", state, state.shape[-1]).to(dtype)
        context, _ = self.model.read(seen, None if pixels is None else self.statistics.images(pixels).to(dtype))
        values: Tensor = self.value(context[:, 0]).squeeze(-1)
        return values.float()


def build_model(config: ACTConfig, description: Description) -> ACTModel:
    """Return the model in float32, with a checkpoint's weights, or random ones from torch's global generator.

    Raises:
        ConfigError: The weights are not those of an ACT of this description.
    """
    model = ACTModel(config, description)
    for name, value in description.statistics.items():
        model.statistics.get_buffer(name).copy_(value)
    if description.folder is not None:
        load_weights(model, _files(description.folder), _optional(model))
    return model


def _files(folder: Path) -> list[Path]:
    """Return the files of a checkpoint's weights."""
    return [folder / WEIGHTS, *(each for each in [folder / EXPLORATION] if each.exists())]


def _optional(model: nn.Module) -> set[str]:
    """Return the names that LeRobot's files lack, or may lack."""
    own = {name for name in model.state_dict() if name.startswith((STATISTICS, SCALE))}
    return own | {"model.vae_encoder_pos_enc"}


def take_over(model: nn.Module, policy_state: Mapping[str, Any]) -> None:
    """Give a critic's model the weights and statistics that it shares with its policy."""
    own = model.state_dict()
    model.load_state_dict({name: policy_state.get(name, value) for name, value in own.items()})
