"""Language models of several agents as one policy: each agent's contexts go through a model of its own.

A row of agents is one episode, and each of its contexts belongs to the agent that wrote in it
(:mod:`embodyflow.types`). So the policy of an agent computes the contexts of that agent in all rows, as if nobody else
had written.
"""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor, nn

from embodyflow.policies.language.agent_arrays import arrays_of
from embodyflow.policies.language.causal_lm.policy_causal_lm import CausalLMPolicy


def owners_of(batch: TensorDict) -> Tensor:
    """Return the agent whose context each token of a response is in, int64 ``[N, R]``; 0 is padding.

    The tokens that an agent reads belong to it like those that it wrote.

    Raises:
        ValueError: A token in the mask is in the context of no agent, so no policy would train on it.
    """
    contexts, writers = (batch[name][..., 0].long() for name in ("token_context", "token_agent"))
    number = int(contexts.max()) + 1 if contexts.numel() else 1
    owners = contexts.new_zeros(len(contexts), number).scatter_reduce(1, contexts, writers, "amax")
    inside = torch.arange(contexts.shape[1]) < batch["response_length"][:, None]
    found = owners.gather(1, contexts) * inside
    if ((found == 0) & batch["loss_mask"][..., 0]).any():
        raise ValueError("token_agent: a token of the model is in the context of no agent, which has no weights")
    return found


class AgentPolicy:
    """The policy of one agent. Implements :class:`~embodyflow.policies.base.Policy` for the rows of all agents.

    Args:
        number: Number of the agent in ``token_agent``, from 1.
        policy: Its policy, which takes rows of one agent.

    Attributes:
        policy: The given policy.
        model: Its model.
    """

    def __init__(self, number: int, policy: CausalLMPolicy) -> None:
        self._number, self.policy, self.model = number, policy, policy.model

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """Layers of the decoder."""
        return self.policy.blocks

    def own(self, batch: TensorDict) -> TensorDict:
        """Return the rows with this agent's tokens alone in ``loss_mask``; it is a shallow copy."""
        mine = owners_of(batch) == self._number
        own = batch.copy()
        own["loss_mask"] = batch["loss_mask"] & mine[..., None]
        return own

    def evaluate(self, batch: TensorDict, temperature: float) -> tuple[Tensor, Tensor]:
        """Return log-probs and entropy of this agent's tokens, float32 ``[N, R, 1]``; zero elsewhere."""
        mine = owners_of(batch) == self._number
        part, rows, steps = _compact(batch, mine)
        lengths = part["response_length"]
        inside = torch.arange(steps.shape[1]) < lengths[:, None]
        values = self.policy.evaluate(part, temperature)
        device = values[0].device
        where = (rows[:, None].expand_as(steps)[inside].to(device), steps[inside].to(device))
        blank = values[0].new_zeros(batch["loss_mask"].shape[:2])
        kept = inside.to(device)
        placed = [blank.index_put(where, each[..., 0][kept]).unsqueeze(-1) for each in values]
        return placed[0], placed[1]

    def export(self, weights: Mapping[str, np.ndarray], folder: Path) -> None:
        """Write a Hugging Face folder."""
        self.policy.export(weights, folder)


class AgentPolicies:
    """Implements :class:`~embodyflow.policies.base.Policy` with a model for each agent. All begin with equal weights.

    Args:
        names: Names of the agents, in the order of their numbers.
        policy: Policy of the first agent; the others get copies.

    Attributes:
        members: Policy of each agent by name.
        model: Their models by name.
    """

    def __init__(self, names: Sequence[str], policy: CausalLMPolicy) -> None:
        copies = [policy, *(copy.deepcopy(policy) for _ in names[1:])]
        self.members = {
            name: AgentPolicy(number, each) for number, (name, each) in enumerate(zip(names, copies, strict=True), 1)
        }
        self.model: nn.Module = nn.ModuleDict({name: each.model for name, each in self.members.items()})

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """Layers of all decoders."""
        return [block for each in self.members.values() for block in each.blocks]

    def evaluate(self, batch: TensorDict, temperature: float) -> tuple[Tensor, Tensor]:
        """Return log-probs and entropy of a batch's tokens, each under the policy of its agent, ``[N, R, 1]``."""
        values = [each.evaluate(batch, temperature) for each in self.members.values()]
        log_probs, entropies = zip(*values, strict=True)
        return sum(log_probs[1:], log_probs[0]), sum(entropies[1:], entropies[0])

    def export(self, weights: Mapping[str, np.ndarray], folder: Path) -> None:
        """Write a Hugging Face folder of each agent, by its name."""
        for name, each in self.members.items():
            each.export(arrays_of(name, weights), folder / name)


def reserved_names(names: Sequence[str]) -> list[str]:
    """Return the names that ``torch.nn.ModuleDict`` cannot hold, such as ``keys``."""
    return [name for name in names if hasattr(nn.ModuleDict, name) or name in vars(nn.ModuleDict())]


def _compact(batch: TensorDict, mine: Tensor) -> tuple[TensorDict, Tensor, Tensor]:
    """Return rows that hold some tokens of each response, and where these come from.

    Args:
        batch: N rows.
        mine: Tokens to keep, bool ``[N, R]``; rows without any are left out.

    Returns:
        The n rows left, with the columns that a policy reads, their indices, int64 ``[n]``, and the place of each kept
        token in its response, int64 ``[n, r]``.
    """
    rows = mine.any(1).nonzero().flatten()
    kept = mine[rows]
    lengths = kept.sum(1)
    steps = (~kept).long().argsort(dim=1, stable=True)[:, : int(lengths.max()) if len(rows) else 1]
    columns: dict[str, Any] = {name: batch[name][rows] for name in ("prompt_tokens", "prompt_length")}
    for name in ("action_tokens", "loss_mask", "token_context"):
        columns[name] = batch[name][rows].gather(1, steps[..., None])
    return TensorDict(columns | {"response_length": lengths}, batch_size=[len(rows)]), rows, steps
