"""Validation scores: pass@k and rewards, over all prompts and per dataset."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodyflow.data.metrics import Metric, mean, total


@dataclass(frozen=True)
class Answers:
    """N scored answers, with several answers per prompt.

    Attributes:
        data_source: Name of the dataset of each answer, [N].
        prompt_id: Prompt of each answer, int64 [N], unique within a dataset.
        reward: Reward of each answer, float [N].
        correct: Correctness of each answer, bool [N].
    """

    data_source: Sequence[str]
    prompt_id: NDArray[np.int64]
    reward: NDArray[np.floating]
    correct: NDArray[np.bool_]


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Return the unbiased estimate of the probability that at least one of ``k`` samples of a prompt is correct.

    1 − C(n − c, k) / C(n, k), where c of n samples are correct. Chen et al. 2021, arXiv:2107.03374, eq. 1.

    Raises:
        ValueError: ``k`` is not in 1 to n, or c is not in 0 to n.
    """
    if not 1 <= k <= num_samples or not 0 <= num_correct <= num_samples:
        raise ValueError(
            f"k={k}, num_samples={num_samples}, num_correct={num_correct}: "
            "needs 1 <= k <= num_samples and 0 <= num_correct <= num_samples"
        )
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def score_metrics(answers: Answers, ks: Sequence[int], prefix: str) -> dict[str, Metric]:
    """Return the scores over all answers, ``<prefix>/<score>``, and per dataset, ``<prefix>/<source>/<score>``.

    The scores are ``pass@<k>`` and ``reward``, which are means over prompts, and the counts ``num_prompts`` and
    ``num_samples``. The scores of several ranks merge correctly if each rank holds whole prompts.

    Raises:
        ValueError: A prompt has fewer than ``k`` samples.
    """
    prompts = _prompts(answers)
    metrics = _means(prompts, ks, prefix)
    for source in dict.fromkeys(answers.data_source):
        metrics |= _means([prompt for prompt in prompts if prompt.source == source], ks, f"{prefix}/{source}")
    return metrics


def score_table(metrics: Mapping[str, Metric], prefix: str) -> list[dict[str, str | float]]:
    """Return a table with one row per dataset, named in the column ``source``, and a last row ``all``."""
    rows: dict[str, dict[str, str | float]] = {}
    for name, metric in metrics.items():
        if name.startswith(f"{prefix}/"):
            source, _, score = name.removeprefix(f"{prefix}/").rpartition("/")
            rows.setdefault(source, {"source": source or "all"})[score] = metric.value
    return sorted(rows.values(), key=lambda row: row["source"] == "all")


@dataclass(frozen=True)
class _Prompt:
    source: str
    num_samples: int
    num_correct: int
    reward: float

    @classmethod
    def of(cls, answers: Answers, samples: NDArray[np.int64]) -> "_Prompt":
        correct, reward = answers.correct[samples], answers.reward[samples]
        source = answers.data_source[int(samples[0])]
        return cls(source, len(samples), int(correct.sum()), float(reward.mean()))


def _prompts(answers: Answers) -> list[_Prompt]:
    samples: dict[tuple[str, int], list[int]] = {}
    for sample, key in enumerate(zip(answers.data_source, answers.prompt_id.tolist(), strict=True)):
        samples.setdefault(key, []).append(sample)
    return [_Prompt.of(answers, np.array(index)) for index in samples.values()]


def _means(prompts: Sequence[_Prompt], ks: Sequence[int], prefix: str) -> dict[str, Metric]:
    count = len(prompts)
    metrics = {"num_prompts": total(count), "num_samples": total(sum(prompt.num_samples for prompt in prompts))}
    if prompts:
        metrics["reward"] = mean(float(np.mean([prompt.reward for prompt in prompts])), count)
        for k in ks:
            estimates = [pass_at_k(prompt.num_samples, prompt.num_correct, k) for prompt in prompts]
            metrics[f"pass@{k}"] = mean(float(np.mean(estimates)), count)
    return {f"{prefix}/{name}": metric for name, metric in metrics.items()}
