"""SmolVLA as an :class:`~embodyflow.policies.base.ImitatingPolicy`."""

from embodyflow.policies.embodied.flow_vla.modeling_flow_vla import FlowVLA
from embodyflow.policies.embodied.flow_vla.policy_flow_vla import FlowVLAPolicy
from embodyflow.policies.embodied.smolvla.checkpoint_smolvla import LAYOUT
from embodyflow.policies.embodied.smolvla.modeling_smolvla import build_model


class SmolVLAPolicy(FlowVLAPolicy):
    """Denoises only the actions that it executes, since no action of a chunk attends to later ones."""

    layout = LAYOUT

    def build_model(self) -> FlowVLA:
        """Return the model; see :func:`~embodyflow.policies.embodied.smolvla.modeling_smolvla.build_model`."""
        return build_model(self.description, self.config.train_expert_only)

    @property
    def horizon(self) -> int:
        """H = C."""
        return self.config.chunk_size

    @property
    def num_imitated_dims(self) -> int:
        """All dimensions, padding included, as in LeRobot."""
        return int(self.description.config["max_action_dim"])
