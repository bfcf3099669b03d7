"""A calculator that takes its time: the stand-in tool of ``benchmarks/agents/slow_tools.py``."""

import asyncio
import math

from embodyflow.agents.calculator import calculate as compute
from embodyflow.seeding import derive_rng

MEDIAN, SIGMA, SHORTEST, LONGEST = 0.3, 1.0, 0.05, 2.0
"""Log-normal time of a call in seconds, and its bounds."""


async def calculate(expression: str) -> str:
    """Compute an arithmetic expression after a time that the expression decides.

    Args:
        expression: Numbers with + - * / and parentheses.
    """
    seconds = math.exp(derive_rng(expression).normal(math.log(MEDIAN), SIGMA))
    await asyncio.sleep(min(max(seconds, SHORTEST), LONGEST))
    return compute(expression)
