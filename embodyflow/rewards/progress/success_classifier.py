"""A classifier that tells successful episodes from others by their embeddings, where few of them have labels.

Rewards of this kind train robots that have no signal of success at training time: Fu et al. 2018, "Variational inverse
control with events", arXiv:1805.11686, section 4; Luo et al. 2024, "Precise and dexterous robotic manipulation via
human-in-the-loop reinforcement learning" (HIL-SERL), arXiv:2410.21845, section 3.

With embeddings x and labels y in {0, 1}, the network f with one hidden layer of tanh minimises the logistic loss

    L = mean over episodes of log(1 + exp(f(x))) − y·f(x),

and the probability of success is 1/(1 + exp(−f(x))).
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embodyflow.rewards.progress.classifier_config import ClassifierConfig
from embodyflow.seeding import derive_rng

Draws = tuple[int | str, ...]
"""Name of random draws (:mod:`embodyflow.seeding`)."""

ROUNDING = 1e-6
"""Spread of a dimension, relative to its largest value, up to which it counts as constant."""


def draw_labelled(num_rows: int, share: float, draws: Draws) -> NDArray[np.bool_]:
    """Return a mask of the episodes whose success is revealed, bool [N]: ``share`` of them, rounded up."""
    chosen = derive_rng(*draws, "labels").permutation(num_rows)[: math.ceil(share * num_rows)]
    mask = np.zeros(num_rows, bool)
    mask[chosen] = True
    return mask


def logistic_loss(logits: Tensor, success: Tensor) -> Tensor:
    """Return the mean logistic loss of logits [N] for successes [N], both floating-point."""
    return torch.nn.functional.binary_cross_entropy_with_logits(logits, success)


@dataclass(frozen=True)
class SuccessClassifier:
    """A trained classifier.

    Attributes:
        mean: Mean of the training embeddings, float64 [D].
        scale: Their standard deviation, float64 [D]; inf for a dimension that does not vary.
        hidden: Weights of the hidden layer, float64 [D, H].
        hidden_bias: Its biases, float64 [H].
        output: Weights of the logit, float64 [H].
        output_bias: Its bias, float64 [].
    """

    mean: Tensor
    scale: Tensor
    hidden: Tensor
    hidden_bias: Tensor
    output: Tensor
    output_bias: Tensor

    @classmethod
    def begin(cls, embeddings: Tensor, hidden_size: int, draws: Draws) -> "SuccessClassifier":
        """Return an untrained classifier, whose probability is 1/2 everywhere.

        Args:
            embeddings: Training embeddings, float64 [M, D], for mean and scale.
            hidden_size: Width of the hidden layer.
            draws: Name of the random draws of its weights.
        """
        size = embeddings.shape[1]
        deviation = embeddings.std(0, correction=0)
        varies = deviation > ROUNDING * embeddings.abs().amax(0)
        weights = derive_rng(*draws, "weights").standard_normal((size, hidden_size)) / math.sqrt(size)
        zeros = torch.zeros(hidden_size, dtype=torch.float64)
        scale = torch.where(varies, deviation, torch.inf)
        return cls(embeddings.mean(0), scale, torch.from_numpy(weights), zeros, zeros.clone(), zeros.sum())

    @property
    def parameters(self) -> list[Tensor]:
        """The trained tensors."""
        return [self.hidden, self.hidden_bias, self.output, self.output_bias]

    def logits(self, embeddings: Tensor) -> Tensor:
        """Return the logit of each embedding, float64 [N]."""
        inputs = (embeddings - self.mean) / self.scale
        return torch.tanh(inputs @ self.hidden + self.hidden_bias) @ self.output + self.output_bias

    def probabilities(self, embeddings: Tensor) -> Tensor:
        """Return the probability of success of each embedding, float64 [N]."""
        with torch.no_grad():
            return torch.sigmoid(self.logits(embeddings))


def train_classifier(
    embeddings: Tensor, success: Tensor, config: ClassifierConfig, draws: Draws
) -> tuple[SuccessClassifier, float]:
    """Train a classifier from the start; return it and its last loss.

    The result depends on the arguments alone, so a repeated iteration finds the same classifier.

    Args:
        embeddings: Embedding of each labelled episode, float64 [M, D], with M of at least 1.
        success: Their success, bool [M].
        config: Settings of the classifier.
        draws: Name of the random draws.
    """
    classifier = SuccessClassifier.begin(embeddings, config.hidden_size, draws)
    parameters = [each.requires_grad_() for each in classifier.parameters]
    optimizer = torch.optim.AdamW(parameters, config.learning_rate, weight_decay=config.weight_decay)
    labels, loss = success.double(), torch.zeros(())
    for _ in range(config.steps):
        optimizer.zero_grad()
        loss = logistic_loss(classifier.logits(embeddings), labels)
        loss.backward()
        optimizer.step()
    return classifier, loss.item()


def has_one_outcome(success: Tensor) -> bool:
    """Return True if successes, bool [M], are all true or all false, so that nothing can be learned from them."""
    return bool(success.all() or not success.any())


def rewards_of(
    probabilities: NDArray[np.float64],
    revealed: NDArray[np.bool_],
    labelled: NDArray[np.bool_],
    threshold: float | None,
) -> NDArray[np.float64]:
    """Return the reward of each episode, float64 [N]: its success with a label, else what the classifier says.

    Args:
        probabilities: Probability of success of each episode, [N].
        revealed: Success of the labelled episodes, bool [number of labelled].
        labelled: Mask of the episodes with a label, bool [N].
        threshold: Probability from which on the reward is 1 instead of 0; ``None`` rewards with the probability.
    """
    rewards = probabilities.copy() if threshold is None else (probabilities >= threshold).astype(np.float64)
    rewards[labelled] = revealed
    return rewards


def area_under_roc(scores: NDArray[np.float64], success: NDArray[np.bool_]) -> float | None:
    """Return the probability that a success scores higher than a failure, where a tie counts half.

    ``None`` if there is no success or no failure.
    """
    won, lost = scores[success], scores[~success]
    if not len(won) or not len(lost):
        return None
    higher = won[:, None] > lost
    return float((higher + 0.5 * (won[:, None] == lost)).mean())
