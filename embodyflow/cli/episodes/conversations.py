"""Tables of an agent's recorded conversations, turn by turn."""

from collections.abc import Callable
from itertools import groupby
from typing import Any

import numpy as np
import torch
from rich.table import Column, Table
from rich.text import Text

from embodyflow.agents.chat.transcript import Origin
from embodyflow.cli.episodes.episode_tables import EpisodeRow, episode_row, mean_advantage, policy_loss
from embodyflow.cli.tables import as_it_is
from embodyflow.config.agents.agent import AgentJobConfig
from embodyflow.policies.language.causal_lm.tokenizer_causal_lm import build_tokenizer
from embodyflow.record.episodes.episode_record import find_episode
from embodyflow.record.run_folder import RunFolder

COLUMNS = ("uid", "iteration", "prompt", "outcome", "turns", "tool calls", "mistakes", "tokens", "score", "advantage")


def conversation_cells(config: AgentJobConfig) -> Callable[[int, EpisodeRow], tuple[str | Text, ...]]:
    """Return a function that maps an iteration and a conversation to the cells of :data:`COLUMNS`."""
    tokenizer = build_tokenizer(config.policy)

    def cells(iteration: int, episode: EpisodeRow) -> tuple[str | Text, ...]:
        return (
            str(episode["uid"]),
            str(iteration),
            as_it_is(_prompt(episode, tokenizer)),
            _outcome(episode),
            *(str(episode[name]) for name in ("num_turns", "tool_calls", "tool_mistakes", "response_length")),
            *(_number(value) for value in (_score(episode), mean_advantage(episode))),
        )

    return cells


def conversation(folder: RunFolder, config: AgentJobConfig, uid: int) -> tuple[Table, Table]:
    """Return the facts of a conversation, and its segments with what they cost and earned.

    Raises:
        ConfigError: The run does not keep the episode.
    """
    iteration, episodes, row = find_episode(folder, uid)
    episode, tokenizer = episode_row(episodes, row), build_tokenizer(config.policy)
    siblings = episodes["group_id"] == episode["group_id"]
    facts = {
        "iteration": iteration,
        "policy version": episode["policy_version"],
        "sampling seed": episode["seed"],
        "group": f"{episode['group_id']}: {int(siblings.sum())} episodes",
        "outcome": _outcome(episode),
        "score": _number(_score(episode)),
        f"advantage ({config.algorithm.advantage})": _number(mean_advantage(episode)),
        "prompt": _prompt(episode, tokenizer),
    }
    table = Table(f"episode {uid}", "", box=None)
    for name, value in facts.items():
        table.add_row(name, as_it_is(value))
    return table, _segments(config, episode, tokenizer)


def _segments(config: AgentJobConfig, episode: EpisodeRow, tokenizer: Any) -> Table:
    """Return a table of the segments: runs of tokens with one origin, in one context and turn."""
    names = (
        "from",
        *(["agent"] if config.rollout.agent.agents else []),
        "context",
        "tokens",
        "trained",
        "log-prob",
        "reward",
        "advantage",
        f"loss ({config.algorithm.loss})",
        "text",
    )
    table = Table(
        *(Column(name, overflow="fold") for name in names), box=None, title="sums over tokens; mean advantage"
    )
    length, mask = int(episode["response_length"]), episode["loss_mask"][..., 0]
    losses = _losses(config, episode) if episode["trained"] else None
    kinds = np.stack([episode[f"token_{name}"][:length, 0] for name in ("origin", "context", "turn")], 1).tolist()
    agents = _agents_of_contexts(config, episode)
    for (origin, context, _), group in groupby(range(length), key=lambda place: kinds[place]):
        places = list(group)
        trained = bool(episode["trained"] and mask[places].any())
        table.add_row(
            Origin(origin).name.lower(),
            *([agents.get(context, "–")] if config.rollout.agent.agents else []),
            str(context),
            str(len(places)),
            "yes" if trained else "no",
            _number(episode["log_probs"][places].sum() if origin == Origin.MODEL else None, "–"),
            _number(episode["rewards"][places].sum() if trained else None, "–"),
            _number(episode["advantages"][places].mean() if trained else None, "–"),
            _number(losses[places].sum() if trained and losses is not None else None, "–"),
            as_it_is(tokenizer.decode(episode["action_tokens"][places, 0].tolist(), skip_special_tokens=False)),
        )
    return table


def _agents_of_contexts(config: AgentJobConfig, episode: EpisodeRow) -> dict[int, str]:
    """Return the name of the agent of each context, in which no other agent writes."""
    written = np.stack([episode["token_context"], episode["token_agent"]], -1).reshape(-1, 2)
    return {context: config.rollout.agent.agents[agent - 1] for context, agent in written.tolist() if agent}


def _losses(config: AgentJobConfig, episode: EpisodeRow) -> Any:
    old, advantages, mask = (torch.from_numpy(episode[name]) for name in ("old_log_probs", "advantages", "loss_mask"))
    return policy_loss(config.algorithm, old, advantages, mask)[..., 0].numpy()


def _prompt(episode: EpisodeRow, tokenizer: Any) -> str:
    tokens = episode["prompt_tokens"][: int(episode["prompt_length"])].tolist()
    text: str = tokenizer.decode(tokens, skip_special_tokens=True)
    return text


def _outcome(episode: EpisodeRow) -> str:
    if not episode["trained"]:
        return "dropped"
    verdict = "success" if episode["success"] else "failure"
    return verdict if episode["terminated"] else f"{verdict}, cut"


def _score(episode: EpisodeRow) -> float | None:
    return float(episode["scores"]) if episode["trained"] else None


def _number(value: float | None, missing: str = "dropped") -> str:
    return missing if value is None else f"{float(value):.4g}"
