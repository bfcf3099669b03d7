"""Reward functions written for verl and for TRL, called as their own trainers call them."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from embodyflow.references import resolve
from embodyflow.rewards.interface import Sample, Score

_VERL_ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")
_TRL_PROMPTS = ("prompt", "prompts", "completion", "completions", "completion_ids")
"""Columns that TRL does not pass on, because its own arguments take their place."""


class VerlFunction:
    """A function ``compute_score(data_source, solution_str, ground_truth, extra_info) -> float or dict``.

    A dict has the reward under ``score``, may say under ``acc`` if the response is correct, by true or false or by a
    number of at least 1, and its other numbers are reported. ``extra_info`` is the row's column of that name.

    Args:
        function: Function to call.
        correct_above: Threshold of the reward; without ``acc`` a response with a higher reward counts as correct.
        kwargs: Further keyword arguments of the function.

    Raises:
        ValueError: The function does not take these arguments.
    """

    def __init__(self, function: Callable[..., Any], correct_above: float, kwargs: Mapping[str, Any]) -> None:
        _check_arguments(function, dict.fromkeys(_VERL_ARGUMENTS) | dict(kwargs))
        self._function, self._correct_above, self._kwargs = function, correct_above, kwargs

    def __call__(self, samples: Sample | Sequence[Sample]) -> Any:
        """Return the score of a sample, or a list with the scores of several."""
        if isinstance(samples, Sample):
            return self._score(samples)
        return [self._score(sample) for sample in samples]

    def _score(self, sample: Sample) -> Score:
        result = self._function(
            data_source=sample.data_source,
            solution_str=sample.response,
            ground_truth=sample.ground_truth,
            extra_info=dict(sample.row.get("extra_info") or {}),
            **self._kwargs,
        )
        if not isinstance(result, Mapping):
            return _score_of(result, self._correct_above)
        if "score" not in result:
            raise ValueError(f"returned a dict without score; it has {', '.join(map(str, result))}")
        score = _score_of(result["score"], self._correct_above)
        parts = {str(name): float(value) for name, value in result.items() if name != "score" and _is_numeric(value)}
        return Score(score.reward, self._is_correct(result.get("acc"), score), parts)

    @staticmethod
    def _is_correct(accuracy: Any, score: Score) -> bool:
        """Return True if ``acc`` says that the response is correct; without it the reward decides."""
        if accuracy is None:
            return score.correct
        if not _is_number(accuracy):
            raise ValueError(f"returned acc={str(accuracy)[:80]}; allowed are true, false and finite numbers")
        return float(accuracy) >= 1


class TRLFunction:
    """A function ``f(prompts, completions, **columns) -> list of float``, called with lists of equal length.

    Prompts and completions are messages where the prompts are chats, and else text. The row's other columns and
    ``completion_ids`` are passed as keywords, as far as the function takes them.

    Args:
        function: Function to call.
        correct_above: Threshold of the reward; a response with a higher reward counts as correct.
        kwargs: Further keyword arguments of the function.
    """

    def __init__(self, function: Callable[..., Any], correct_above: float, kwargs: Mapping[str, Any]) -> None:
        self._function, self._correct_above, self._kwargs = function, correct_above, kwargs
        parameters = inspect.signature(function).parameters.values()
        takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
        self._names = None if takes_all else {each.name for each in parameters}

    def __call__(self, samples: Sample | Sequence[Sample]) -> Any:
        """Return the score of a sample, or a list with the scores of several."""
        if isinstance(samples, Sample):
            return self._scores([samples])[0]
        return self._scores(samples)

    def _scores(self, samples: Sequence[Sample]) -> list[Score]:
        columns = _columns_of(samples) | {
            "prompts": [sample.prompt if sample.messages is None else sample.messages for sample in samples],
            "completions": [_completion(sample) for sample in samples],
            "completion_ids": [list(sample.token_ids) for sample in samples],
        }
        arguments = {name: values for name, values in columns.items() if self._names is None or name in self._names}
        arguments |= self._kwargs
        _check_arguments(self._function, arguments)
        rewards = self._function(**arguments)
        if not isinstance(rewards, Sequence) or len(rewards) != len(samples):
            raise ValueError(f"must return a list of {len(samples)} rewards, not {str(rewards)[:80]}")
        return [_score_of(reward, self._correct_above) for reward in rewards]


ORIGINS: dict[str, type[VerlFunction] | type[TRLFunction]] = {"verl": VerlFunction, "trl": TRLFunction}
"""Class of each prefix of a reference, such as ``verl:my_module:compute_score``."""


def split_origin(reference: str) -> tuple[str | None, str]:
    """Return the origin of a reward function, ``None`` for one of our own interface, and ``module:function``."""
    origin, _, rest = reference.partition(":")
    return (origin, rest) if origin in ORIGINS else (None, reference)


def load_borrowed(reference: str, correct_above: float, kwargs: Mapping[str, Any]) -> VerlFunction | TRLFunction:
    """Return a function of verl's or TRL's interface, which takes a sample or several.

    Raises:
        ImportError: The function cannot be imported.
        ValueError: The function does not take the arguments of its interface.
    """
    origin, rest = split_origin(reference)
    assert origin is not None
    return ORIGINS[origin](resolve(rest), correct_above, kwargs)


def _columns_of(samples: Sequence[Sample]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for sample in samples for name in sample.row if name not in _TRL_PROMPTS)
    return {name: [sample.row.get(name) for sample in samples] for name in names}


def _completion(sample: Sample) -> Any:
    return sample.response if sample.messages is None else [{"role": "assistant", "content": sample.response}]


def _score_of(reward: Any, correct_above: float) -> Score:
    if not _is_number(reward):
        raise ValueError(f"returned the reward {str(reward)[:80]}; allowed are finite numbers")
    return Score(float(reward), float(reward) > correct_above)


def _is_number(value: Any) -> bool:
    """Return True for finite numbers, also those of NumPy and torch."""
    return _is_numeric(value) and math.isfinite(float(value))


def _is_numeric(value: Any) -> bool:
    """Return True for numbers, also those of NumPy and torch, NaN and inf."""
    if isinstance(value, str | bytes | Mapping | None):
        return False
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _check_arguments(function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise ValueError(f"{error}; it is called with {', '.join(arguments)}") from error
