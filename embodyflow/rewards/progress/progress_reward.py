"""SRPO's progress reward: a failure scores by its distance to the successes of the same batch.

Fei et al. 2025, "SRPO: self-referential policy optimization for vision-language-action models", arXiv:2511.15605,
section 3.2. Every episode has one embedding h. For each task, over the successes S and the failures of the whole batch:

- C = DBSCAN(S), the centres of the clusters of successes (eq. 3);
- dᵢ = min over c in C of ‖hᵢ − c‖ (eq. 4);
- gᵢ = 1 for a success and α·φ(−(dᵢ − d̄)/σ_d) for a failure, where φ is the logistic function, d̄ and σ_d are the mean
  and deviation of the failures' distances, and α = 0.8 (eq. 5, appendix D);
- gᵢ = 0, the outcome, for failures of a task without a success.

The paper does not specify the input of DBSCAN. In this implementation:

- Every dimension is standardised over all episodes of the task, and distances are root mean squares over the
  dimensions that vary, so that ``eps`` means the same for 16 dimensions and for 1,536. (The authors' code standardises
  by the successes alone and takes the sum; in 1,536 dimensions ``eps=0.5`` then finds almost no clusters.)
- A success outside all clusters is a centre of its own, since it did succeed. (The authors' code drops it. If there are
  no clusters, it uses the mean of all successes, which may be close to no episode.)

The rewards of a task's failures therefore always spread over (0, α), even if the failures differ little. If advantages
were divided by the deviation of the group, as in GRPO, differences within an all-failure group would weigh as much as
those between failure and success. ``configs/flow/srpo.yaml`` therefore uses the advantage of Dr. GRPO, which does not
divide.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodyflow.rewards.progress.progress_config import ProgressConfig

Floats = NDArray[np.float64]

ROUNDING = 1e-6
"""Relative spread up to which numbers count as equal: float32 rounding when sums run in another order."""


@dataclass(frozen=True)
class Progress:
    """Scores of the episodes of a batch.

    Attributes:
        scores: Score of each episode, float32 [N]: 1 for a success, in [0, α) for a failure.
        distances: Distance of each episode to the nearest centre, float32 [N]: 0 for a success, inf if the task has no
            success.
        num_centres: Number of centres of successes, over all tasks.
        num_unreached: Number of tasks without a success.
    """

    scores: NDArray[np.float32]
    distances: NDArray[np.float32]
    num_centres: int
    num_unreached: int


def measure_progress(
    embeddings: NDArray[np.floating], success: NDArray[np.bool_], tasks: NDArray[np.integer], config: ProgressConfig
) -> Progress:
    """Score all episodes of a batch.

    Args:
        embeddings: Embedding of each episode, [N, D], finite.
        success: Success of each episode, bool [N].
        tasks: Task of each episode, [N].
        config: Settings of the progress reward.
    """
    scores, distances = success.astype(np.float64), np.where(success, 0.0, np.inf)
    num_centres = num_unreached = 0
    for task in np.unique(tasks):
        won, lost = (tasks == task) & success, (tasks == task) & ~success
        if not won.any():
            num_unreached += 1
            continue
        points = _standardize(embeddings.astype(np.float64), won | lost)
        centres = find_centres(points[won], config.eps, config.min_samples)
        num_centres += len(centres)
        if lost.any():
            distances[lost] = np.linalg.norm(points[lost][:, None] - centres, axis=-1).min(axis=1)
            scores[lost] = config.alpha * _logistic(-_standard_scores(distances[lost]))
    return Progress(scores.astype(np.float32), distances.astype(np.float32), num_centres, num_unreached)


def find_centres(points: Floats, eps: float, min_samples: int) -> Floats:
    """Return the mean of every DBSCAN cluster and every point outside all clusters, [C, D]."""
    from sklearn.cluster import DBSCAN  # imports pandas, which takes over a second in every worker

    labels = DBSCAN(eps=eps, min_samples=min_samples).fit_predict(points)
    means = [points[labels == label].mean(axis=0) for label in range(labels.max() + 1)]
    return np.stack([*means, *points[labels == -1]])


def _standardize(embeddings: Floats, rows: NDArray[np.bool_]) -> Floats:
    """Return embeddings whose Euclidean distances are root mean squares of standardised differences.

    Args:
        embeddings: Embeddings, [N, D].
        rows: Rows that determine mean and deviation, bool [N].
    """
    chosen = embeddings[rows]
    deviation = chosen.std(axis=0)
    varies = deviation > ROUNDING * np.abs(chosen).max(axis=0)
    scale = np.where(varies, deviation, 1.0) * np.sqrt(max(varies.sum(), 1))
    return np.where(varies, (embeddings - chosen.mean(axis=0)) / scale, 0.0)


def _standard_scores(values: Floats) -> Floats:
    """Return (x − mean)/deviation, or zeros if all values are equal."""
    deviation = values.std()
    if deviation <= ROUNDING * np.abs(values).max():
        return np.zeros_like(values)
    return (values - values.mean()) / deviation


def _logistic(values: Floats) -> Floats:
    return 1.0 / (1.0 + np.exp(-values))
