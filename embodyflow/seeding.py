"""Seeds for every random draw.

The name of a draw is the place where it happens: ``(run seed, iteration, node, row)``. So runs with the same seed make
the same draws on any number of workers, and so does a node that is repeated.
"""

import hashlib
import operator

import numpy as np

LARGEST_ENV_SEED = 2**31 - 1
"""Largest seed that environments are reset with. Gymnasium's generators take any seed, but simulators often have
others, such as ``numpy.random.RandomState``, which take 32 bits, some of them signed."""


def derive_seed(*parts: int | str) -> int:
    """Return a seed in ``[0, 2**63)`` that depends on every part and on their order.

    Args:
        *parts: Name of the draw, usually ``(run_seed, iteration, node_id, row)``.

    Returns:
        The first 63 bits of the SHA-256 of the parts. Unlike ``hash`` they are the same in every process.

    Raises:
        TypeError: A part is neither a string nor an integer.
    """
    # operator.index accepts NumPy's integers and refuses floats.
    text = "\x1f".join(f"str:{part}" if isinstance(part, str) else f"int:{operator.index(part)}" for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def derive_rng(*parts: int | str) -> np.random.Generator:
    """Return a NumPy Philox generator seeded with :func:`derive_seed` of the parts."""
    return np.random.Generator(np.random.Philox(derive_seed(*parts)))
