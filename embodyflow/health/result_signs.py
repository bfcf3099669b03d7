"""Detectors of results that fall: of the held-out evaluation or of training, and of rewards that rise meanwhile."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from embodyflow.health.history import Finding, History, Record
from embodyflow.health.settings import ResultDropConfig, RewardHackingConfig

HELD_OUT = {
    "eval/greedy_success_rate": ("eval/greedy_success_low", "eval/greedy_success_high"),
    "eval/sampled_success_rate": ("eval/sampled_success_low", "eval/sampled_success_high"),
    "eval/return": ("eval/return_low", "eval/return_high"),
}
"""Results of evaluations with the ends of their 95 % intervals."""
SUCCESS = "rollout/success_rate"
REWARDS = ("rollout/reward", SUCCESS)
"""Results of training. Where robots learn from success, the first one is the environment's own return."""


@dataclass(frozen=True)
class Fall:
    """A held-out result that is further below the best one before it than chance explains.

    Attributes:
        name: Metric of the result.
        best: Evaluation with the best result before the newest.
        newest: Newest evaluation.
        threshold: Value below which the upper end of the newest result's 95 % interval lies.
    """

    name: str
    best: Record
    newest: Record
    threshold: float

    def finding(self, text: str) -> Finding:
        """Return the finding with a text."""
        return Finding(self.name, self.newest[self.name], self.threshold, text, healthy=self.best["iteration"])

    def __str__(self) -> str:
        """Return the fall as the beginning of a sentence."""
        return f"{self.name} fell from {self.best[self.name]:.4g} to {self.newest[self.name]:.4g}"


def result_drop(history: History, config: ResultDropConfig) -> Finding | None:
    """Find a result far below the best one before it: of the newest evaluation, or of training."""
    for fall in _falls(history, config.margin):
        text = f"{fall}, further than chance explains"
        return fall.finding(text)
    rates, recent = history.values(SUCCESS), history.recent(SUCCESS, config.patience)
    ends = range(config.window, len(rates) - config.patience + 1)
    best = max((statistics.median(rates[end - config.window : end]) for end in ends), default=0.0)
    if not recent or max(recent) >= best - config.max_fall:
        return None
    text = f"{SUCCESS}={recent[-1]:.4g} is more than {config.max_fall:g} below its best median {best:.4g}"
    return Finding(SUCCESS, recent[-1], best - config.max_fall, f"{text} in {config.patience} iterations")


def reward_hacking(history: History, config: RewardHackingConfig) -> Finding | None:
    """Find a training reward that rose while the held-out result fell further than chance explains.

    The newest evaluation is compared with the best one before it, by their 95 % intervals.
    """
    for fall in _falls(history, config.margin):
        for name in REWARDS:
            before, now = (_until(history, name, each, config.window) for each in (fall.best, fall.newest))
            if before is not None and now is not None and now > before:
                text = f"{fall} while {name} in training rose from {before:.4g} to {now:.4g}"
                return fall.finding(text)
    return None


def _falls(history: History, margin: float) -> Iterator[Fall]:
    for name, (low, high) in HELD_OUT.items():
        measured = [each for each in history.evaluations if {name, low, high} <= each.keys()]
        if len(measured) < 2:
            continue
        newest, best = measured[-1], max(measured[:-1], key=lambda each: float(each[name]))
        threshold = best[low] - margin * (newest[high] - newest[low])
        if newest[high] < threshold:
            yield Fall(name, best, newest, threshold)


def _until(history: History, name: str, evaluation: Record, window: int) -> float | None:
    """Return the mean of a metric in the iterations before an evaluation; ``None`` without any."""
    earlier: Sequence[Record] = [each for each in history.iterations if each["iteration"] <= evaluation["iteration"]]
    values = [each[name] for each in earlier[-window:] if name in each]
    return statistics.fmean(values) if values else None
