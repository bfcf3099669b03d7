"""Random numbers for sampling action tokens."""

import numpy as np
import torch
from numpy.typing import NDArray

BELOW_ONE = np.nextafter(np.float32(1), np.float32(0))


def chunk_uniforms(
    rng: np.random.Generator, shape: tuple[int, int], horizon: int, correlation: float
) -> NDArray[np.float32]:
    """Draw uniforms in [0, 1) for the decisions of an episode, correlated within each chunk.

    Independent noise of a chunk's actions averages out: the hand ends in the same place, and the siblings of a group
    have the same outcome. So a Gaussian copula (Nelsen, 2006, "An Introduction to Copulas", section 2.3) correlates the
    actions within each decision::

        z[k, d] = sqrt(correlation) · shared[d] + sqrt(1 - correlation) · own[k, d]        u[k, d] = Φ(z[k, d])

    for action k and dimension d, with standard normal ``shared`` and ``own``. Each u is uniform on its own, independent
    of the observations. So each token is drawn from the policy's own distribution: its log-prob and ratio are the usual
    ones, and its score has mean zero in every state, so that baselines add no bias. Only the tokens of one decision
    depend on each other.

    Let A be the expected outcome as a function of the chunk's actions, and R their correlation matrix. For small
    Gaussian noise the expected update is R·∇A instead of ∇A. R is positive semi-definite, so the update still
    increases A, mostly along the component that the actions share. Noise that persists over decisions (Hollenstein et
    al., 2024, "Colored Noise in PPO", arXiv:2312.11091) explores further, but there observations carry information
    about future noise. Then scores no longer have mean zero, and the log-probs are not those of the sampling
    distribution.

    Args:
        rng: Generator of the episode.
        shape: (T, R), the number of decisions and the number of draws per decision, ordered action by action. R is L
            if each token takes one draw.
        horizon: H, the number of actions per decision, including planned actions that are not executed. With 1 there
            is nothing to correlate.
        correlation: Correlation of the noise of any two actions of a chunk, in [0, 1].

    Returns:
        Uniforms, float32 ``[T, R]``.
    """
    if correlation == 0:
        return rng.random(shape, dtype=np.float32)
    num_decisions, num_draws = shape
    dimensions = num_draws // horizon
    shared = rng.standard_normal((num_decisions, 1, dimensions))
    own = rng.standard_normal((num_decisions, horizon, dimensions))
    joined = np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * own
    uniforms = torch.special.ndtr(torch.from_numpy(joined)).numpy().astype(np.float32)
    return np.minimum(uniforms, BELOW_ONE).reshape(shape)
