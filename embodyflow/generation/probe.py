"""A few fixed sequences whose log-probs say whether a rollout worker holds the weights that the trainer does.

A weight that was not taken over (a tied head, a layer, a whole version) shows here before a sample is drawn. So does a
model that tells sequences apart by no positions: the last two share a line with the trainer, and none with an engine.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from embodyflow.errors import ParityError
from embodyflow.seeding import derive_rng

LENGTHS = (16, 16, 8, 8)
"""Of prompt and response, a quarter the prompt."""

COLUMN = "probe/"
"""Before the names of what travels with the weights for comparison."""

Tokens = tuple[int, ...]


def probe_sequences(seed: int, vocab_size: int) -> list[tuple[Tokens, Tokens]]:
    """Return pairs of prompt and response in tokens, drawn from the whole vocabulary."""
    draws = derive_rng(seed, "probe").integers(vocab_size, size=(len(LENGTHS), max(LENGTHS))).tolist()
    return [(tuple(row[: end // 4]), tuple(row[end // 4 : end])) for row, end in zip(draws, LENGTHS, strict=True)]


def compare(
    theirs: Mapping[str, np.ndarray], scores: Sequence[np.ndarray], tolerance: float, version: int, rank: int
) -> float:
    """Compare the rollout's log-probs of the probe with the trainer's; return the largest difference.

    Raises:
        ParityError: it is beyond the tolerance.
    """
    gap = float(np.abs(theirs[f"{COLUMN}log_probs"] - np.concatenate(scores)).max())
    if not gap <= tolerance:
        raise ParityError(
            f"weights of version {version}: rollout worker {rank} and trainer differ by {gap:.3g} in the log-probs of "
            f"fixed sequences; allowed is rollout.probe_tolerance={tolerance:g}. Weights were not taken over, or the "
            "model sees what lies beside a sequence in its line"
        )
    return gap
