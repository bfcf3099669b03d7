"""Policies whose actions attend to all others of their chunk."""

from embodyflow.policies.embodied.flow_vla.policy_flow_vla import FlowVLAPolicy


class WholeChunkPolicy(FlowVLAPolicy):
    """Denoises as many actions as the model was trained with; executes the first C."""

    @property
    def horizon(self) -> int:
        """H, the checkpoint's ``chunk_size``."""
        return int(self.description.config["chunk_size"])

    @property
    def num_imitated_dims(self) -> int:
        """A: LeRobot does not train the padding."""
        return self.config.action_dim
