"""Environment classes as TRL's ``environment_factory`` takes them; none knows of embodyflow."""

import asyncio
import random
import time

import numpy as np

FAULTS: list[str] = []
"""Faults that the next calls of :class:`Fragile` have."""


class Increment:
    """The environment of TRL's documentation, whose rows are its own."""

    def reset(self, **kwargs) -> str | None:
        self.counter = 0
        self.target = random.randint(1, 6)
        return f"{self.target}="

    def get_reward(self) -> float:
        return float(self.counter - self.target)

    def increment(self, step: int) -> int:
        """
        Increment the internal counter.

        Args:
            step: Value to add to the counter.

        Returns:
            The updated counter value.
        """
        self.counter += step
        return self.counter


class Dice:
    """Draws from both global generators; coroutine methods."""

    def __init__(self):
        self.seen: list[int] = []

    def reset(self, *, bonus: int = 0) -> None:
        self.seen = [bonus]

    def roll(self) -> int:
        """Roll."""
        self.seen.append(random.randint(1, 6) + 10 * int(np.random.randint(1, 7)))
        return self.seen[-1]

    async def wait(self, seconds: float) -> str:
        """Wait.

        Args:
            seconds: Time to wait.
        """
        await asyncio.sleep(seconds)
        self.seen.append(0)
        return "waited"

    async def get_reward(self):
        return np.float32(sum(self.seen))


class SlowDice:
    """Draws from both global generators in coroutines, before and after they wait."""

    async def reset(self) -> str:
        return await self._roll()

    async def roll(self) -> str:
        """Roll."""
        return await self._roll()

    async def fumble(self) -> str:
        """Roll, but ask for too much first."""
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)
        except TimeoutError:
            return await self._roll()
        return "never"

    async def get_reward(self) -> float:
        return float(len(await self._roll()))

    async def _roll(self) -> str:
        seen = [random.randint(1, 99)]
        for _ in range(3):
            await asyncio.sleep(0.001)
            seen += [random.randint(1, 99), int(np.random.randint(1, 99))]
        return " ".join(map(str, seen))


class Fragile:
    """Changes before it fails."""

    built = 0

    def __init__(self):
        type(self).built += 1
        self.steps: list[int] = []

    def reset(self, prompt, **row):
        prompt.append("changed")  # it may do what it likes with its arguments
        fail_if_due("reset")

    def step(self, number: int) -> list[int]:
        """Step.

        Args:
            number: Number of the step.
        """
        self.steps.append(number)
        fail_if_due("step")
        return self.steps

    def refuse(self, number: int) -> str:
        """Step, and refuse.

        Args:
            number: Number of the step.
        """
        self.steps.append(number)
        raise LookupError(f"no step {number}")

    def get_reward(self) -> float:
        fail_if_due("reward")
        return len(self.steps)


def fail_if_due(place: str) -> None:
    if FAULTS and FAULTS[0].startswith(place):
        if FAULTS.pop(0).endswith("hang"):
            time.sleep(0.6)
        else:
            raise ConnectionResetError("reset by peer")


class Coding:
    def reset(self, **kwargs) -> str:
        return f"{sorted(kwargs)}"

    def run_code(self, code: str) -> str:
        """Run code.

        Args:
            code: Source.
        """
        return code


class Game:
    def reset(self, *, goal) -> str:
        return str(goal)

    def move(self, action: str) -> str:
        """Move.

        Args:
            action: Direction.
        """
        return action


class Judged(Coding):
    """Its reward is what :attr:`reward` says."""

    reward: object = 1.0

    def get_reward(self):
        return self.reward


def make_increment() -> Increment:
    return Increment()


class WithoutReset:
    def move(self, action: str) -> str:
        """Move.

        Args:
            action: Direction.
        """
        return action


class WithoutTools:
    def reset(self, **row) -> None: ...

    def get_reward(self) -> float:
        return 0.0

    @staticmethod
    def helper() -> None: ...


class Untyped(WithoutTools):
    def move(self, action):
        """Move."""
