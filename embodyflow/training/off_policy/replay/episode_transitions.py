"""Episodes as transitions of decisions: a chunk of actions, and the state and images after it.

The reward of an episode's last decision is its success, 1 or 0; all others are 0. A success ends the episode like a
termination, also in environments that go on after it, since no reward follows.

An image is in the columns once: transitions have the places of the frames before and after them, and a frame is the
images of all cameras at one moment. An episode of n decisions has n + 1 frames, a demonstration one for each step.
"""

from collections.abc import Iterable

import torch
from tensordict import TensorDict

from embodyflow.columns import FINAL
from embodyflow.training.imitation.imitation import Steps
from embodyflow.training.off_policy.replay.image_replay import IMAGES
from embodyflow.training.off_policy.replay.segments import Array


def of_episodes(rows: TensorDict, cameras: Iterable[str] = ()) -> dict[str, Array]:
    """Return the decisions of played episodes, in the order of rows and decisions, by column of the replay buffer.

    Args:
        rows: Embodied rows (:mod:`embodyflow.types`) with states and images.
        cameras: Cameras whose images the buffer keeps.
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
    found = {name: column[decided].numpy() for name, column in columns.items()}
    return found | _frames_of_episodes(rows, decided, list(cameras))


def _frames_of_episodes(rows: TensorDict, decided: torch.Tensor, cameras: list[str]) -> dict[str, Array]:
    """Return the frames of episodes and the places of the decisions' frames; nothing without cameras.

    Args:
        rows: Embodied rows.
        decided: True for decisions, bool ``[N, T]``.
        cameras: Cameras.
    """
    if not cameras:
        return {}
    ends = decided.sum(1)
    lengths = ends + (ends > 0)  # in frames; a row without a decision has none
    first = lengths.cumsum(0) - lengths
    place = (first[:, None] + torch.arange(decided.shape[1]))[decided]
    last, has_last = (first + ends)[ends > 0], ends > 0
    columns = {"frame": place, "next_frame": place + 1}
    for camera in cameras:
        images = torch.empty((int(lengths.sum()), *rows[camera].shape[2:]), dtype=torch.uint8)
        images[place], images[last] = rows[camera][decided], rows[FINAL + camera][has_last]
        columns[IMAGES + camera] = images
    return {name: column.numpy() for name, column in columns.items()}


def of_demonstrations(demos: TensorDict, chunk_size: int, cameras: Iterable[str] = ()) -> dict[str, Array]:
    """Return the decisions from every step of successful demonstrations, by column of the replay buffer.

    A decision is followed by the one ``chunk_size`` places after it, and the last ``chunk_size`` of each demonstration
    end it. Numbers after the end repeat the last action.

    Args:
        demos: Demonstrations from :meth:`~embodyflow.rollouts.embodied.embodied_rollout.EmbodiedRollout.demonstrate`.
        chunk_size: C, actions of one decision.
        cameras: Cameras whose images the buffer keeps.
    """
    steps = Steps.of_demonstrations(demos, ["state", *(names := list(cameras))], chunk_size)
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
    if names:
        columns |= {"frame": torch.arange(len(state)), "next_frame": following}
        columns |= {IMAGES + camera: steps.observation[camera] for camera in names}
    return {name: column.numpy() for name, column in columns.items()}
