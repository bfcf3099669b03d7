"""A few fixed sequences whose log-probs say whether a rollout worker holds the weights that the trainer does.

A weight that was not taken over (a tied head, a layer, a whole version) shows here before a sample is drawn.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from embodyflow.errors import ParityError
from embodyflow.seeding import derive_rng

NUM_SEQUENCES, LENGTH = 4, 16
COLUMN = "probe/"
"""Before the names of what travels with the weights for comparison."""

Tokens = tuple[int, ...]


def probe_sequences(seed: int, vocab_size: int) -> list[tuple[Tokens, Tokens]]:
    """Return pairs of prompt and response in tokens, drawn from the whole vocabulary."""
    draws = derive_rng(seed, "probe").integers(vocab_size, size=(NUM_SEQUENCES, LENGTH)).tolist()
    return [(tuple(row[: LENGTH // 4]), tuple(row[LENGTH // 4 :])) for row in draws]


def compare(
    theirs: Mapping[str, np.ndarray], scores: Sequence[np.ndarray], tolerance: float, version: int, rank: int
) -> float:
    """Compare the rollout's log-probs of the probe with the trainer's; return the largest difference.

    Raises:
        ParityError: it is beyond the tolerance.
    """
    gap = float(np.abs(theirs[f"{COLUMN}log_probs"] - np.stack(scores)).max())
    if not gap <= tolerance:
        raise ParityError(
            f"weights of version {version}: rollout worker {rank} and trainer differ by {gap:.3g} in the log-probs of "
            f"fixed sequences; allowed is rollout.probe_tolerance={tolerance:g}"
        )
    return gap
