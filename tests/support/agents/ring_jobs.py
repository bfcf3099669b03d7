"""Jobs of the two agents of ``examples/ring`` that are small enough for a test, and environments that fail."""

import os
import signal
from pathlib import Path
from typing import Any

from agent_jobs import agent_config, agent_words

from embodyflow.config.agents.agent import AgentJobConfig
from examples.ring.sum_check import SumCheck

FAULTS: list[str] = []
"""Faults that :class:`FaultySumCheck` still has."""
BUILT: list["CountedSumCheck"] = []
"""Environments that :class:`CountedSumCheck` built."""
MEMBERS = (
    "{reasoner: {pre_process: 'examples.ring.process:pre_process', pre_process_kwargs: {pre_chat_template: "
    "'\\${prompt}\\${obs}'}, post_process: 'examples.ring.process:post_process', post_process_kwargs: "
    "{post_chat_template: ','}, observes: true}, actor: {pre_process: 'examples.ring.process:pre_process', "
    "pre_process_kwargs: {pre_chat_template: '\\${prompt}'}}}"
)
WORDS = (
    *("experiment=self_correct", "rollout.max_prompt_tokens=16", "rollout.max_response_tokens=110"),
    *("rollout.agent.workflow=embodyflow.agents.ring.ring:Ring", "rollout.agent.max_turns=2"),
    *("rollout.agent.max_turn_tokens=10", "policy.scratch.max_position_embeddings=126", "warm_start=null"),
)


def ring_words(environment: str = "examples.ring.sum_check:SumCheck", **ring: Any) -> tuple[str, ...]:
    """Return the words of the ring; further settings are keys of ``rollout.agent.ring``."""
    section = environment if environment.startswith("{") else f"'{environment}'" if environment else "null"
    settings = {"members": MEMBERS, "environment": section, **ring}
    written = ", ".join(f"{key}: {value}" for key, value in settings.items())
    reward = "workflow" if environment else "exact_match"
    return (*WORDS, f"reward={reward}", f"rollout.agent.ring={{{written}}}")


def ring_config(
    environment: str = "examples.ring.sum_check:SumCheck", overrides: tuple[str, ...] = (), **ring: Any
) -> AgentJobConfig:
    """Compose the tiny run of a ring with overrides; other arguments are those of :func:`ring_words`."""
    return agent_config(*ring_words(environment, **ring), *overrides)


__all__ = ["BUILT", "FAULTS", "agent_words", "ring_config", "ring_words"]


class CountedSumCheck(SumCheck):
    """Notes each instance and its steps."""

    def __init__(self) -> None:
        BUILT.append(self)
        self.steps: list[list[str]] = []

    async def step(self, actions: list[str], ground_truth: str) -> tuple[list[str], float, bool]:
        """Take a step of :class:`SumCheck`, unless a fault is left."""
        self.steps.append(actions)
        if self.tries and FAULTS:
            self.tries += 7  # half changed
            raise ConnectionResetError(FAULTS.pop())
        return await super().step(actions, ground_truth)


class Digits(SumCheck):
    """Pays for the digits that the actor writes, so that a model without a warm start learns."""

    async def step(self, actions: list[str], ground_truth: str) -> tuple[list[str], float, bool]:
        """Return a tenth for each digit of the last turn."""
        digits = sum(letter.isdigit() for letter in actions[-1].rpartition(",")[2])
        return ["wrong", self.question], digits / 10, False


class Deadly(Digits):
    """Ends the process of the rollout worker, once, at the step that ``KILL_AT`` numbers."""

    async def step(self, actions: list[str], ground_truth: str) -> tuple[list[str], float, bool]:
        """Take a step of :class:`Digits`; ``ASKED`` is the file that counts the steps."""
        asked = Path(os.environ["ASKED"])
        number = len(asked.read_text().splitlines()) if asked.exists() else 0
        marker = asked.with_suffix(".killed")
        if os.environ.get("KILL_AT") == str(number) and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        with asked.open("a") as file:
            file.write(f"{actions[-1]}\n")
        return await super().step(actions, ground_truth)


class Silent(SumCheck):
    """Returns one observation for two agents."""

    async def step(self, actions: list[str], ground_truth: str) -> Any:
        """Return too few texts."""
        return ["wrong"], 0.0, False


class Stepless:
    """Has no step."""

    def reset(self) -> None:
        """Begin an episode."""


class OneArgument(Stepless):
    """Has a step without the truth."""

    async def step(self, actions: list[str]) -> Any:
        """Return nothing."""
