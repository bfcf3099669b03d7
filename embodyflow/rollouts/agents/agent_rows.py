"""Rows of conversations: the columns of language rows, with the origin, context and turn of each token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from embodyflow.agents.chat.transcript import Origin, Response
from embodyflow.agents.episode import Counts, Episode
from embodyflow.config.agents.agent import AgentConfig
from embodyflow.data.batches import Columns
from embodyflow.data.metrics import Metric, mean, total
from embodyflow.data.padding import pad_lists
from embodyflow.types import Batch

_MOST_TURNS = 8


@dataclass(frozen=True)
class Played:
    """An episode with its counts and the seed of its last draw."""

    episode: Episode
    counts: Counts
    seed: int


def columns_of_episodes(played: Sequence[Played], agents: Sequence[str] = ()) -> Columns:
    """Return the columns of episodes (:mod:`embodyflow.types`), each padded to the longest; only ids are missing.

    Args:
        played: Episodes.
        agents: Names of the agents, in the order of their numbers.
    """
    episodes = [each.episode for each in played]
    responses = [episode.transcript.response() for episode in episodes]
    prompts = [episode.transcript.prompt for episode in episodes]
    lengths = np.array([len(response.tokens) for response in responses], np.int64)
    finished = np.array([episode.finished for episode in episodes], np.bool_)
    return {
        "seed": np.array([each.seed for each in played], np.int64),
        "policy_version": np.array([response.policy_version for response in responses], np.int64),
        "prompt_tokens": pad_lists(prompts, np.int64)[1],
        "prompt_length": np.array([len(prompt) for prompt in prompts], np.int64),
        **_token_columns(responses, {name: number for number, name in enumerate(agents, 1)}),
        **_reward_columns(episodes, responses),
        "response_length": lengths,
        "num_steps": lengths.copy(),
        "terminated": finished,
        "truncated": ~finished,
        "num_turns": np.array([each.counts.turns for each in played], np.int64),
        "tool_calls": np.array([each.counts.calls for each in played], np.int64),
        "tool_mistakes": np.array([each.counts.mistakes for each in played], np.int64),
    }


def _token_columns(responses: Sequence[Response], agents: Mapping[str, int]) -> Columns:
    """Return the columns of tokens, N rows of R tokens.

    Args:
        responses: Tokens of the episodes.
        agents: Number of each agent by its name.
    """
    inside, tokens = pad_lists([response.tokens for response in responses], np.int64)
    _, log_probs = pad_lists([response.log_probs for response in responses], np.float32)
    _, origins = pad_lists([response.origins for response in responses], np.int8)
    _, contexts = pad_lists([response.contexts for response in responses], np.int32)
    _, turns = pad_lists([response.turns for response in responses], np.int32)
    columns: Columns = {}
    if any(response.versions for response in responses):
        of_tokens = [response.versions or (response.policy_version,) * len(response.tokens) for response in responses]
        columns["token_version"] = pad_lists(of_tokens, np.int32)[1][..., None]
    _, writers = pad_lists([[agents.get(name, 0) for name in response.agents] for response in responses], np.int32)
    return {
        "action_tokens": tokens[..., None],
        "log_probs": log_probs[..., None],
        "loss_mask": (inside & (origins == Origin.MODEL))[..., None],
        "token_origin": origins[..., None],
        "token_context": contexts[..., None],
        "token_turn": turns[..., None],
        "token_agent": writers[..., None],
        **columns,
    }


def _reward_columns(episodes: Sequence[Episode], responses: Sequence[Response]) -> Columns:
    """Return the columns of the workflow's own rewards and verdicts."""
    pairs = list(zip(episodes, responses, strict=True))
    _, of_turns = pad_lists([place_on_turns(each.turn_rewards, response) for each, response in pairs], np.float32)
    _, of_agents = pad_lists(
        [place_on_agents(each.agent_rewards or {}, response) for each, response in pairs], np.float32
    )
    rewards = [0.0 if each.reward is None else each.reward for each in episodes]
    verdicts = [
        reward > 0 if each.success is None else each.success for each, reward in zip(episodes, rewards, strict=True)
    ]
    return {
        "token_turn_reward": of_turns[..., None],
        "token_agent_reward": of_agents[..., None],
        "rewarded": np.array([each.reward is not None for each in episodes], np.bool_),
        "agents_rewarded": np.array([each.agent_rewards is not None for each in episodes], np.bool_),
        "own_reward": np.array(rewards, np.float32),
        "own_success": np.array(verdicts, np.bool_),
    }


def place_on_turns(rewards: Sequence[float], response: Response) -> list[float]:
    """Return the reward of each turn at its last token and 0 elsewhere, R numbers.

    Args:
        rewards: Reward of each turn of the model, in order; empty gives none.
        response: Tokens of the episode.
    """
    last = {turn: place for place, turn in enumerate(response.turns) if turn}
    placed = [0.0] * len(response.tokens)
    for turn, reward in enumerate(rewards, 1):
        placed[last[turn]] = reward
    return placed


def place_on_agents(rewards: Mapping[str, float], response: Response) -> list[float]:
    """Return the reward of each agent at the last token that it wrote and 0 elsewhere, R numbers.

    Args:
        rewards: Reward of each agent by name. An agent that wrote nothing has no place.
        response: Tokens of the episode.
    """
    written = zip(response.agents, response.turns, strict=True)
    last = {agent: place for place, (agent, turn) in enumerate(written) if turn}
    placed = [0.0] * len(response.tokens)
    for agent, reward in rewards.items():
        if agent in last:
            placed[last[agent]] = reward
    return placed


def conversation_metrics(rows: Batch, config: AgentConfig) -> dict[str, Metric]:
    """Return how often model and tools took turns, how many calls were mistakes, and success within so many turns.

    Args:
        rows: N rows of conversations with ``success``.
        config: Section ``rollout.agent``. The success within each of the first 8 turns is reported, and the mean reward
            of each agent.
    """
    count = len(rows)
    by_turn = {
        f"rollout/success_turn_{turn}": rows["success"] & (rows["num_turns"] <= turn)
        for turn in range(1, min(config.max_turns, _MOST_TURNS) + 1)
    }
    per_episode = {
        "rollout/turns": rows["num_turns"],
        "rollout/contexts": rows["token_context"].flatten(1).amax(1) + 1 if count else rows["num_turns"],
        "rollout/turn_reward": rows["token_turn_reward"].flatten(1).sum(1),
        "rollout/tool_calls": rows["tool_calls"],
        **by_turn,
        **{
            f"rollout/reward_{name}": (rows["token_agent_reward"] * (rows["token_agent"] == number)).flatten(1).sum(1)
            for number, name in enumerate(config.agents, 1)
        },
    }
    means = {name: mean(float(each.double().mean()) if count else 0.0, count) for name, each in per_episode.items()}
    return means | {"rollout/tool_mistakes": total(int(rows["tool_mistakes"].sum()))}
