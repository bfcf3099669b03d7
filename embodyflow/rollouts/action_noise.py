"""The randomness that action tokens are drawn with."""

import numpy as np
import torch
from numpy.typing import NDArray

BELOW_ONE = np.nextafter(np.float32(1), np.float32(0))


def chunk_uniforms(
    rng: np.random.Generator, shape: tuple[int, int], horizon: int, correlation: float
) -> NDArray[np.float32]:
    """Draw the uniforms in [0, 1) that an episode is decided with; those of a chunk move together.

    Independent noise of the actions of a chunk averages out: the hand ends where it would have ended, and siblings of a
    group share their outcome. So within a decision, and only there, the actions of a chunk are joined by a Gaussian
    copula (Nelsen, 2006, "An Introduction to Copulas", section 2.3)::

        z[k, d] = sqrt(correlation) · shared[d] + sqrt(1 - correlation) · own[k, d]        u[k, d] = Φ(z[k, d])

    for action k and dimension d, ``shared`` and ``own`` standard normal. Every u by itself is uniform, whatever the
    policy has seen: each token is drawn from the policy's own distribution, its log-prob and its ratio are what they
    always are, and its score has mean zero in every state, so that baselines do no harm. Only the tokens of one
    decision depend on each other. For small Gaussian noise the expected update is R·∇A where it was ∇A, A the
    expected outcome as a function of the chunk's actions and R their correlation matrix: positive semi-definite, so
    it still leads upwards, along what the actions of a chunk have in common first. Noise that goes on over decisions
    (Hollenstein et al., 2024, "Colored Noise in PPO", arXiv:2312.11091) reaches further, but what is seen then tells
    of the noise to come: scores have no longer mean zero, and the log-probs are not those of the distribution that
    was drawn from.

    Args:
        rng: of the episode.
        shape: (T, R), decisions and draws of each, which lie action by action; R is L where each token takes one.
        horizon: H, actions of a decision, those that are planned and not executed among them; 1 leaves nothing to
            correlate.
        correlation: of the noise of any two actions of a chunk, in [0, 1].

    Returns:
        float32 ``[T, R]``.
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
