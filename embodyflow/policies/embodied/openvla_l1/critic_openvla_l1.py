"""Critic of OpenVLA-OFT with a regression head, as :class:`~embodyflow.policies.base.Critic`."""

from embodyflow.policies.embodied.openvla.checkpoint_openvla import Description
from embodyflow.policies.embodied.openvla.configuration_openvla import OpenVLAConfig
from embodyflow.policies.embodied.openvla.critic_openvla import OpenVLACritic
from embodyflow.policies.embodied.openvla.modeling_openvla import Backbone
from embodyflow.policies.embodied.openvla_l1.configuration_openvla_l1 import OpenVLAL1Config
from embodyflow.policies.embodied.openvla_l1.modeling_openvla_l1 import build_model


class OpenVLAL1Critic(OpenVLACritic):
    """Values images and prompt as OpenVLA's critic does; it does not read the state."""

    @staticmethod
    def _policy_model(config: OpenVLAConfig, description: Description) -> Backbone:
        assert isinstance(config, OpenVLAL1Config)
        return build_model(config, description)
