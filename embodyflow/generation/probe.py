"""The probe: fixed sequences whose log-probs show that a rollout worker has the trainer's weights.

A weight that was not loaded (a tied head, a layer, a whole version) shows up here before anything is sampled. So does a
model that attends across packed sequences: the trainer packs the last two into one line, an engine packs none.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from embodyflow.errors import ParityError
from embodyflow.seeding import derive_rng

LENGTHS = (16, 16, 8, 8)
"""Lengths of the sequences in tokens; the first quarter of each is its prompt."""

PREFIX = "probe/"
"""Prefix of the names of probe arrays, which travel with the weights."""

Tokens = tuple[int, ...]


def probe_sequences(seed: int, vocab_size: int) -> list[tuple[Tokens, Tokens]]:
    """Return pairs of prompt and response, with tokens drawn from the whole vocabulary."""
    draws = derive_rng(seed, "probe").integers(vocab_size, size=(len(LENGTHS), max(LENGTHS))).tolist()
    return [(tuple(row[: end // 4]), tuple(row[end // 4 : end])) for row, end in zip(draws, LENGTHS, strict=True)]


def compare(
    theirs: Mapping[str, np.ndarray], scores: Sequence[np.ndarray], tolerance: float, version: int, rank: int
) -> float:
    """Compare a rollout worker's log-probs of the probe with the trainer's; return the largest difference.

    The tokens are drawn at random, so a model that was trained gives them log-probs of -20 and below, computed from
    logits as large. Rounding errors grow with the logits: a difference counts by the size of the trainer's log-prob,
    if that is above 1.

    Args:
        theirs: Probe arrays from the trainer.
        scores: Log-probs from the rollout worker's engine, one array per sequence.
        tolerance: Largest difference allowed, relative to log-probs beyond 1.
        version: Version of the weights.
        rank: Rank of the rollout worker.

    Raises:
        ParityError: The difference exceeds the tolerance.
    """
    expected = theirs[f"{PREFIX}log_probs"]
    gap = float((np.abs(expected - np.concatenate(scores)) / np.maximum(np.abs(expected), 1.0)).max())
    if not gap <= tolerance:
        raise ParityError(
            f"weights of version {version}: log-probs of the probe differ by {gap:.3g} of their size between rollout "
            f"worker {rank} and trainer; allowed is rollout.probe_tolerance={tolerance:g}. The worker did "
            "not load all weights, or the model attends across packed sequences"
        )
    return gap
