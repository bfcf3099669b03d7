"""The configuration of hindsight experience replay."""

from typing import Annotated, Literal

from pydantic import Field

from embodyflow.config.base import Config
from embodyflow.config.robots.environment import EnvConfig


class HindsightConfig(Config):
    """Hindsight experience replay (Andrychowicz et al. 2017, arXiv:1707.01495).

    Attributes:
        ratio: Transitions of a batch that are relabelled with another goal, per one that keeps its own.
        strategy: Goal of a relabelled transition: one that its episode achieves in the same or a later step
            (``future``), or the one that it achieves in its last step (``final``).
    """

    ratio: Annotated[int, Field(ge=1, le=1000, strict=True)] = 4
    strategy: Literal["future", "final"] = "future"

    def num_relabelled(self, batch_size: int) -> int:
        """Return the number of relabelled transitions in a batch."""
        return batch_size * self.ratio // (self.ratio + 1)


def check_hindsight(env: EnvConfig, *, num_return_steps: int, has_demonstrations: bool) -> None:
    """Refuse settings of a control job with which a transition cannot be relabelled.

    Args:
        env: Configuration of the environments.
        num_return_steps: Setting of the section ``off_policy``.
        has_demonstrations: Whether batches have transitions of another run.

    Raises:
        ValueError: One line with the key and what is allowed.
    """
    if num_return_steps != 1:
        raise ValueError(
            f"off_policy.num_return_steps={num_return_steps}: allowed is 1 with off_policy.hindsight, which relabels "
            "single steps"
        )
    if has_demonstrations:
        raise ValueError(
            "off_policy.demonstrations: must be null with off_policy.hindsight, which relabels transitions of the run"
        )
    if env.adapter is None:
        raise ValueError(
            "env.adapter=null: must be set with off_policy.hindsight, so that the state shows both goals: "
            "env.adapter.state=[observation,achieved_goal,desired_goal]"
        )
    if env.adapter.success_info is not None:
        raise ValueError(
            f"env.adapter.success_info={env.adapter.success_info}: must be null with off_policy.hindsight, since it "
            "ends episodes and says nothing about other goals; allowed is success_reward, the reward of a reached goal"
        )
