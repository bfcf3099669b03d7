"""Episodes as transitions of decisions: a chunk of actions, and the state after it.

The reward of an episode's last decision is its success, 1 or 0; all others are 0. A success ends the episode like a
termination, also in environments that go on after it, since no reward follows.
"""

import torch
from tensordict import TensorDict

from embodyflow.training.imitation.imitation import Steps
from embodyflow.training.off_policy.replay.segments import Array


def of_episodes(rows: TensorDict) -> dict[str, Array]:
    """Return the decisions of played episodes, in the order of rows and decisions, by column of the replay buffer.

    Args:
        rows: Embodied rows (:mod:`embodyflow.types`) with states.
    """
    decided = rows["loss_mask"].any(-1)
    is_last = decided & ~torch.cat([decided[:, 1:], torch.zeros_like(decided[:, :1])], 1)
    after = torch.cat([rows["state"][:, 1:], rows["state"][:, :1]], 1)  # the last one's is replaced
    success = rows["success"].bool()
    columns = {
        "state": rows["state"],
        "action": rows["action_tokens"],
        "reward": (is_last & success[:, None]).float(),
        "next_state": torch.where(is_last[..., None], rows["final_state"][:, None], after),
        "terminated": is_last & (rows["terminated"].bool() | success)[:, None],
        "truncated": is_last & (rows["truncated"].bool() & ~success)[:, None],
    }
    return {name: column[decided].numpy() for name, column in columns.items()}


def of_demonstrations(demos: TensorDict, chunk_size: int) -> dict[str, Array]:
    """Return the decisions from every step of successful demonstrations, by column of the replay buffer.

    A decision is followed by the one ``chunk_size`` places after it, and the last ``chunk_size`` of each demonstration
    end it. Numbers after the end repeat the last action.

    Args:
        demos: Demonstrations from :meth:`~embodyflow.rollouts.embodied.embodied_rollout.EmbodiedRollout.demonstrate`.
        chunk_size: C, actions of one decision.
    """
    steps = Steps.of_demonstrations(demos, ["state"], chunk_size)
    state = steps.observation["state"]
    following = (torch.arange(len(state)) + chunk_size).clamp(max=len(state) - 1)
    lengths = demos["num_steps"].tolist()
    ends = torch.cat([torch.arange(length) + chunk_size >= length for length in lengths])
    columns = {
        "state": state,
        "action": steps.actions.flatten(1),
        "reward": ends.float(),
        "next_state": state[following],  # unused at the end
        "terminated": ends,
        "truncated": torch.zeros_like(ends),
    }
    return {name: column.numpy() for name, column in columns.items()}
