"""The instructions of a run's tasks, as its policy reads them."""

from collections.abc import Mapping

import numpy as np

from embodyflow.errors import ConfigError
from embodyflow.policies.base import ActingPolicy


def encoded_instructions(policy: ActingPolicy, instructions: Mapping[str, str]) -> np.ndarray:
    """Return the instructions as the policy reads them, int64 ``[tasks, I]``.

    Tasks may have one instruction if their observations differ, as in LIBERO-90. Different instructions must differ for
    the policy too: one that hashes words may give two of them the same numbers.

    Args:
        policy: Policy that reads them.
        instructions: Instruction of each task by its name.

    Raises:
        ConfigError: The policy reads two different instructions alike.
    """
    ids = np.stack([policy.encode_instruction(text) for text in instructions.values()])
    tasks: dict[bytes, str] = {}  # the first task of each row
    for task, row in zip(instructions, ids, strict=True):
        other = tasks.setdefault(row.tobytes(), task)
        if instructions[other] != instructions[task]:
            raise ConfigError(
                f"env.tasks: the policy reads the instructions of {other!r} and {task!r} alike, "
                f"{instructions[other]!r} and {instructions[task]!r}; allowed are other "
                "words (env.adapter.instructions), or for tiny_vla another policy.vocab_size"
            )
    return ids
