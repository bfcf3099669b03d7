"""A game of PettingZoo that needs no further package: the last of a pile wins."""

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv
from pettingzoo.utils import AgentSelector

LARGEST = 3


class Pile(AECEnv):
    """Two players take one to three stones in turn from a pile of 4 to 7; who takes the last one wins."""

    metadata: ClassVar = {"name": "pile_v0"}

    def __init__(self, where: str = "observation") -> None:
        super().__init__()
        self._where = where
        self.possible_agents = ["ann", "bob"]

    def observation_space(self, agent: str) -> spaces.Space:
        pile = spaces.Discrete(8)
        if self._where != "observation":
            return pile
        return spaces.Dict({"observation": pile, "action_mask": spaces.MultiBinary(LARGEST)})

    def action_space(self, agent: str) -> spaces.Discrete:
        return spaces.Discrete(LARGEST)

    def observe(self, agent: str) -> Any:
        return {"observation": self.pile, "action_mask": self._mask()} if self._where == "observation" else self.pile

    def reset(self, seed: int | None = None, options: dict | None = None) -> None:
        self.pile = int(np.random.default_rng(seed).integers(4, 8))
        self.agents = self.possible_agents[:]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {"action_mask": self._mask()} if self._where == "infos" else {} for agent in self.agents}
        self._selector = AgentSelector(self.agents)
        self.agent_selection = self._selector.next()

    def step(self, action: int | None) -> None:
        player = self.agent_selection
        if self.terminations[player]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[player] = 0.0
        self._clear_rewards()
        self.pile -= int(action) + 1
        if self.pile == 0:
            self.rewards = {agent: 1.0 if agent == player else -1.0 for agent in self.agents}
            self.terminations = dict.fromkeys(self.agents, True)
        for info in self.infos.values():
            info.update({"action_mask": self._mask()} if self._where == "infos" else {})
        self.agent_selection = self._selector.next()
        self._accumulate_rewards()

    def _mask(self) -> np.ndarray:
        return np.arange(1, LARGEST + 1) <= self.pile


def env(**kwargs: Any) -> Pile:
    """Return the game, as PettingZoo's modules do."""
    return Pile(**kwargs)


def describe(observation: int, player: str) -> str:
    """Return what a player reads."""
    return f"{player}: {observation} left"
