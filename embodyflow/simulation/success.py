"""Reading the success that an environment reports; :mod:`embodyflow.environments.adapter` reads by the same rules."""

import re
from typing import Any

import numpy as np


def read_success(value: Any) -> bool:
    """Return the success that a value of ``info`` reports: true or false, or a number, of which 0 is false.

    Raises:
        ValueError: The value is no finite number, a share between 0 and 1 of a goal, or negative; the message has no
            subject.
    """
    if isinstance(value, bool):
        return value
    number = np.asarray(value)
    if number.dtype.kind not in "biuf" or number.size != 1 or not np.isfinite(number).all():
        raise ValueError(f"must be true or false, or a number, in every step, is {_brief(value)}")
    if 0 < number < 1:
        raise ValueError(
            f"is {_brief(value)}, and a share of the goal is no success; a wrapper can compare it, or "
            "success_reward of env.adapter"
        )
    if number < 0:
        raise ValueError(f"is {_brief(value)}; allowed are true, false, 0 and numbers of at least 1")
    return bool(number)


def _brief(value: Any) -> str:
    """Return a value's representation in one short line, without addresses in memory."""
    line = re.sub(r" at 0x\w+", "", " ".join(repr(value).split()))
    return line if len(line) <= 80 else f"{line[:77]}..."
