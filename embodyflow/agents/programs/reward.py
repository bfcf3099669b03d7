"""Rewards that programs print."""

import json
from typing import Any

from embodyflow.rewards.interface import is_reward


class PrintedRewardError(RuntimeError):
    """The last line that a program printed is no reward; the message says what is allowed."""


def read_reward(output: str) -> tuple[float | None, bool | None]:
    """Return the reward and the verdict in the last line of a program's output.

    The line is a JSON number, or an object such as ``{"reward": 0.5, "success": true}``. Without output, or with
    ``null``, there is no reward.

    Raises:
        PrintedRewardError: The line is something else, such as an object with a key twice, or the number is NaN,
            infinite or too large for float32.
    """
    lines = output.strip().splitlines()
    if not lines:
        return None, None
    try:
        value: Any = json.loads(lines[-1], object_pairs_hook=_keys_once)
    except (ValueError, RecursionError):  # the latter of thousands of brackets
        raise _error(lines[-1]) from None
    success = None
    if isinstance(value, dict) and value.keys() <= {"reward", "success"} and "reward" in value:
        value, success = value["reward"], value.get("success")
    if value is None and success is None:
        return None, None
    if not is_reward(value) or not (success is None or isinstance(success, bool)):
        raise _error(lines[-1])
    return float(value), success


def _keys_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object's entries; of a key that is there twice JSON's reader would keep the last one."""
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("a key is there twice")
    return entries


def _error(line: str) -> PrintedRewardError:
    shown = line if len(line) <= 80 else f"{line[:77]}..."
    return PrintedRewardError(
        f"the last line of the program's stdout is {shown!r}; allowed is a number, "
        '{"reward": number, "success": true or false} or null. Print other text to stderr, or set '
        "rollout.agent.program.reward=function if the program prints no reward"
    )
