"""SRPO's progress reward: failures are worth what they have in common with the batch's own successes.

Fei et al. 2025, "SRPO: self-referential policy optimization for vision-language-action models", arXiv:2511.15605,
section 3.2. With one embedding h per episode and, task by task, the successes S and the failures of the whole batch:

- C = DBSCAN(S), the centres of the successes' clusters (eq. 3);
- dᵢ = min over c in C of ‖hᵢ − c‖ (eq. 4);
- gᵢ = 1 for a success, α·φ(−(dᵢ − d̄)/σ_d) for a failure, φ the logistic function, d̄ and σ_d mean and deviation of the
  failures' distances, α = 0.8 (eq. 5, appendix D); 0 where the task has no success to be compared with: the outcome.

The paper leaves open what DBSCAN is given. Here:

- Every dimension is standardised over all episodes of the task, and distances are root mean squares over the
  dimensions that vary, so that ``eps`` means the same for 16 dimensions and 1,536. (The authors' code standardises by
  the successes alone and takes the sum; ``eps=0.5`` then finds next to no cluster in 1,536 dimensions.)
- A success that belongs to no cluster is a centre of its own: it is one, whatever the others look like. (The authors'
  code leaves it out, and takes the mean of all where there is no cluster, which no episode need be near to.)

Failures of one task thus always spread over (0, α), however little they differ. Divided by a group's deviation, as GRPO
does, the differences within a group that failed as a whole would weigh as much as those between failure and success:
``configs/flow/srpo.yaml`` takes the advantage of Dr. GRPO, which does not divide.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodyflow.rewards.progress.progress_config import ProgressConfig

Floats = NDArray[np.float64]

ROUNDING = 1e-6
"""Relative spread up to which numbers count as equal: of float32, computed in another order."""


@dataclass(frozen=True)
class Progress:
    """What episodes are worth.

    Attributes:
        scores: float32 [N]: 1 for a success, in [0, α) for a failure.
        distances: float32 [N], to the nearest centre: 0 for a success, infinite where the task has none.
        num_centres: of the successes' clusters, over all tasks.
        num_unreached: tasks without a success.
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
        embeddings: [N, D], finite.
        success: [N].
        tasks: [N], which task each episode is of.
        config: α and DBSCAN's numbers.
    """
    scores, distances = success.astype(np.float64), np.where(success, 0.0, np.inf)
    num_centres = num_unreached = 0
    for task in np.unique(tasks):
        won, lost = (tasks == task) & success, (tasks == task) & ~success
        if not won.any():
            num_unreached += 1
            continue
        points = _standardised(embeddings.astype(np.float64), won | lost)
        centres = find_centres(points[won], config.eps, config.min_samples)
        num_centres += len(centres)
        if lost.any():
            distances[lost] = np.linalg.norm(points[lost][:, None] - centres, axis=-1).min(axis=1)
            scores[lost] = config.alpha * _logistic(-_standard_scores(distances[lost]))
    return Progress(scores.astype(np.float32), distances.astype(np.float32), num_centres, num_unreached)


def find_centres(points: Floats, eps: float, min_samples: int) -> Floats:
    """Return the mean of every cluster that DBSCAN finds, and every point that is in none: [C, D]."""
    from sklearn.cluster import DBSCAN  # with pandas, over a second to import, in every worker of every job

    labels = DBSCAN(eps=eps, min_samples=min_samples).fit_predict(points)
    means = [points[labels == label].mean(axis=0) for label in range(labels.max() + 1)]
    return np.stack([*means, *points[labels == -1]])


def _standardised(embeddings: Floats, rows: NDArray[np.bool_]) -> Floats:
    """Return embeddings whose Euclidean distances are root mean squares of standardised differences.

    Args:
        embeddings: [N, D].
        rows: bool [N], by whose mean and deviation.
    """
    chosen = embeddings[rows]
    deviation = chosen.std(axis=0)
    varies = deviation > ROUNDING * np.abs(chosen).max(axis=0)
    scale = np.where(varies, deviation, 1.0) * np.sqrt(max(varies.sum(), 1))
    return np.where(varies, (embeddings - chosen.mean(axis=0)) / scale, 0.0)


def _standard_scores(values: Floats) -> Floats:
    """Return (x − mean)/deviation, zeros for values that are equal."""
    deviation = values.std()
    if deviation <= ROUNDING * np.abs(values).max():
        return np.zeros_like(values)
    return (values - values.mean()) / deviation


def _logistic(values: Floats) -> Floats:
    return 1.0 / (1.0 + np.exp(-values))
