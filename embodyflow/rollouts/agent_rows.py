"""Rows of conversations: the columns of language rows, with the origin of each token."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embodyflow.agents.episode import Counts, Episode
from embodyflow.agents.transcript import Origin
from embodyflow.data.batches import Columns
from embodyflow.data.metrics import Metric, mean, total
from embodyflow.data.padding import pad_lists
from embodyflow.types import Batch


@dataclass(frozen=True)
class Played:
    """An episode with its counts and the seed of its last draw."""

    episode: Episode
    counts: Counts
    seed: int


def columns_of_episodes(played: Sequence[Played]) -> Columns:
    """Return the columns of episodes (:mod:`embodyflow.types`), each padded to the longest; only ids are missing."""
    episodes = [each.episode for each in played]
    responses = [episode.transcript.response() for episode in episodes]
    inside, tokens = pad_lists([response.tokens for response in responses], np.int64)
    _, log_probs = pad_lists([response.log_probs for response in responses], np.float32)
    _, origins = pad_lists([response.origins for response in responses], np.int8)
    lengths, finished = inside.sum(1), np.array([episode.finished for episode in episodes], np.bool_)
    prompts = [episode.transcript.prompt for episode in episodes]
    own = [episode.reward is not None for episode in episodes]
    rewards = [0.0 if episode.reward is None else episode.reward for episode in episodes]
    return {
        "seed": np.array([each.seed for each in played], np.int64),
        "policy_version": np.array([response.policy_version for response in responses], np.int64),
        "prompt_tokens": pad_lists(prompts, np.int64)[1],
        "prompt_length": np.array([len(prompt) for prompt in prompts], np.int64),
        "action_tokens": tokens[..., None],
        "log_probs": log_probs[..., None],
        "loss_mask": (inside & (origins == Origin.MODEL))[..., None],
        "token_origin": origins[..., None],
        "response_length": lengths,
        "num_steps": lengths.copy(),
        "terminated": finished,
        "truncated": ~finished,
        "num_turns": np.array([each.counts.turns for each in played], np.int64),
        "tool_calls": np.array([each.counts.calls for each in played], np.int64),
        "tool_mistakes": np.array([each.counts.mistakes for each in played], np.int64),
        "rewarded": np.array(own, np.bool_),
        "own_reward": np.array(rewards, np.float32),
        "own_success": np.array(
            [
                bool(reward > 0 if each.success is None else each.success)
                for each, reward in zip(episodes, rewards, strict=True)
            ],
            np.bool_,
        ),
    }


def conversation_metrics(rows: Batch) -> dict[str, Metric]:
    """Return how often the model and its tools took turns, and how many calls were mistakes."""
    count = len(rows)
    return {
        "rollout/turns": mean(float(rows["num_turns"].double().mean()) if count else 0.0, count),
        "rollout/tool_calls": mean(float(rows["tool_calls"].double().mean()) if count else 0.0, count),
        "rollout/tool_mistakes": total(int(rows["tool_mistakes"].sum())),
    }
