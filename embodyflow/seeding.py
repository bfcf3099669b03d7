"""One seed for every random draw.

A draw is named by where it happens: ``(run seed, iteration, node, row)``. Two runs with the same seed make the
same draws whatever the number of workers, and a node that is run again makes them again.
"""

import hashlib
import operator

import numpy as np

LARGEST_ENV_SEED = 2**31 - 1
"""Of what environments are reset by. Gymnasium's generators take any seed; those that simulators often have beside
them, such as ``numpy.random.RandomState``, take 32 bits, some of them signed."""


def derive_seed(*parts: int | str) -> int:
    """Return a seed in ``[0, 2**63)`` that depends on every part and on their order.

    Args:
        *parts: the name of the draw, by custom ``(run_seed, iteration, node_id, row)``.

    Returns:
        The first 63 bits of the SHA-256 of the parts: independent of the process, unlike ``hash``.

    Raises:
        TypeError: a part is neither a string nor a whole number.
    """
    # operator.index takes NumPy's integers for what they are and refuses floats.
    text = "\x1f".join(f"str:{part}" if isinstance(part, str) else f"int:{operator.index(part)}" for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def derive_rng(*parts: int | str) -> np.random.Generator:
    """Return NumPy's Philox generator seeded by :func:`derive_seed` of the parts."""
    return np.random.Generator(np.random.Philox(derive_seed(*parts)))
