"""Configuration of rewards: the function that scores a response and the manager that runs it.

Both are unions that ``name`` discriminates.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from embodyflow.algorithms.algorithm_config import OverlongConfig
from embodyflow.durations import Seconds
from embodyflow.references import check_function, resolve
from embodyflow.rewards.borrowed import load_borrowed, split_origin
from embodyflow.rewards.own_functions import check_call, yields

Positive = Annotated[float, Field(gt=0)]
Isolation: TypeAlias = Literal["auto", "bubblewrap", "namespaces", "guard"]

REASONING_GYM = "embodyflow.rewards.functions.reasoning_gym:score"
"""Reference of the function that calls reasoning-gym's verifiers."""

SANDBOX_START_SECONDS = 30.0
"""Timeout for a sandbox to start the program."""


class _Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ExactMatchConfig(_Config):
    """The text after a marker equals the ground truth, apart from surrounding whitespace.

    Attributes:
        marker: Text before the final answer; the last occurrence counts. ``null`` compares the whole response.
    """

    name: Literal["exact_match"] = "exact_match"
    marker: Annotated[str, Field(min_length=1)] | None = "##"


class GSM8KConfig(_Config):
    """The number after the last ``####``, on its line, equals the ground truth (Cobbe et al. 2021, arXiv:2110.14168).

    The ground truth is a number, or a worked answer that ends with ``####`` and a number.
    """

    name: Literal["gsm8k"] = "gsm8k"


class RegexConfig(_Config):
    """The group of a regular expression matches the ground truth, apart from surrounding whitespace.

    A pattern may take exponential time on a response, so it needs the manager ``parallel``.

    Attributes:
        pattern: Regular expression of Python's ``re`` with one group; its last match counts.
    """

    name: Literal["regex"] = "regex"
    pattern: str

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, pattern: str) -> str:
        try:
            num_groups = re.compile(pattern).groups
        except re.error as error:
            raise ValueError(f"is not a regular expression: {error}") from error
        if num_groups != 1:
            raise ValueError(f"has {num_groups} groups; allowed is one group, around the answer")
        return pattern


class MathConfig(_Config):
    r"""The content of the last ``\boxed{}`` is mathematically equal to the ground truth, according to math-verify.

    The ground truth is LaTeX, with or without a box around the answer.
    """

    name: Literal["math"] = "math"


class CodeConfig(_Config):
    """The last fenced block of Python in the response passes the tests, which are the ground truth.

    The tests are Python source with assertions. They call the response's code, which runs in another sandboxed process
    (:mod:`embodyflow.rewards.sandbox.sandbox`); arguments and results cross as data.

    Attributes:
        time_limit: Seconds for the program and its tests, including imports.
        memory_gb: Memory of all processes of the program together, and address space of each and of the tests, in GB
            (10⁹ bytes).
        isolation: Protection from the program: ``namespaces`` (the kernel removes the network and other processes and
            makes other files read-only), ``bubblewrap`` (the same, set up by bubblewrap), ``guard`` (Landlock and
            seccomp refuse other files, further processes, signals and sockets; weaker, for machines that forbid
            namespaces), or ``auto`` (bubblewrap where it is installed, else namespaces; never the guard).
    """

    name: Literal["code"] = "code"
    time_limit: Seconds = 10.0
    memory_gb: Positive = 1.0
    isolation: Isolation = "auto"


class CustomConfig(_Config):
    """A function from any importable module.

    Attributes:
        function: Function as ``"module:function"``, called as ``(sample, **kwargs) -> Score``; with the manager
            ``batch`` as ``(samples, **kwargs) -> list of Score``. ``"verl:module:function"`` is called as verl calls
            its ``compute_score``, and ``"trl:module:function"`` as TRL calls a reward function.
        kwargs: Keyword arguments of the function.
        correct_above: Threshold of the reward of a function of verl's or TRL's interface; a response with a higher
            reward counts as correct.
    """

    name: Literal["custom"] = "custom"
    function: str
    kwargs: dict[str, Any] = {}
    correct_above: float = 0.5

    @field_validator("function")
    @classmethod
    def _check_function(cls, function: str) -> str:
        origin, reference = split_origin(function)
        check_function(reference, "" if origin is None else f"{origin}:")
        return function

    @model_validator(mode="after")
    def _check_arguments(self) -> "CustomConfig":
        origin, reference = split_origin(self.function)
        try:
            check_call(resolve(reference), self.kwargs if origin is None else None)
            if origin is not None:
                load_borrowed(self.function, self.correct_above, self.kwargs)
        except ValueError as error:
            raise ValueError(f"function={self.function}: {error}") from error
        return self


OneFunctionConfig = Annotated[
    ExactMatchConfig | GSM8KConfig | MathConfig | RegexConfig | CodeConfig | CustomConfig,
    Field(discriminator="name"),
]


class BySourceConfig(_Config):
    """One function per dataset.

    Attributes:
        functions: Function by data source (``data.data_source``, or the values of ``data.data_source_column``).
        default: Function of all other data sources; ``null`` refuses them.
    """

    name: Literal["by_source"] = "by_source"
    functions: dict[str, OneFunctionConfig] = {}
    default: OneFunctionConfig | None = None

    @model_validator(mode="after")
    def _check_functions(self) -> "BySourceConfig":
        if not self.functions and self.default is None:
            raise ValueError("functions or default must be set, such as functions={openai/gsm8k:{name:gsm8k}}")
        return self


FunctionConfig = Annotated[
    ExactMatchConfig | GSM8KConfig | MathConfig | RegexConfig | CodeConfig | CustomConfig | BySourceConfig,
    Field(discriminator="name"),
]


class NaiveConfig(_Config):
    """Score samples one by one in the calling process, without a time limit; for fast functions."""

    name: Literal["naive"] = "naive"


class BatchConfig(_Config):
    """Score all samples in one call of a custom function, in the calling process."""

    name: Literal["batch"] = "batch"


class ParallelConfig(_Config):
    """Score samples in several processes, with a time limit per sample.

    Attributes:
        num_workers: Number of processes.
        time_limit: Seconds for one sample.
        memory_gb: Address space of each process in GB (10⁹ bytes); ``null`` for functions that use CUDA, which reserves
            far more address space than memory.
        retries: Number of retries for a sample whose process hung or died.
        overdue: Treatment of a sample that exceeded the time limit each time: an ``error`` that ends the run, or
            ``incorrect``, counted in the score part ``timed_out``, for functions that a response can make hang, such as
            ``math``.
    """

    name: Literal["parallel"] = "parallel"
    num_workers: Annotated[int, Field(ge=1, strict=True)] = 2
    time_limit: Seconds = 10.0
    memory_gb: Positive | None = 4.0
    retries: Annotated[int, Field(ge=0, strict=True)] = 1
    overdue: Literal["error", "incorrect"] = "error"


class ModelConfig(_Config):
    """A reward model: a sequence classifier of ``transformers`` with one output.

    Attributes:
        path: Folder of the model, or its name on the hub.
        template: Input text of the model, with ``{prompt}`` and ``{response}``.
        batch_size: Number of responses per forward pass.
        max_tokens: Maximum number of input tokens; a longer input is an error and never truncated.
        device: Device that the model runs on.
        dtype: Data type of the weights.
        correct_above: Threshold of the reward; a response with a higher reward counts as correct.
    """

    name: Literal["model"] = "model"
    path: str
    template: str = "{prompt}{response}"
    batch_size: Annotated[int, Field(ge=1, strict=True)] = 16
    max_tokens: Annotated[int, Field(ge=1, strict=True)] = 4096
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    correct_above: float = 0.0

    @field_validator("template")
    @classmethod
    def _check_template(cls, template: str) -> str:
        if "{response}" not in template:
            raise ValueError("must contain {response}")
        return template


ScoringManagerConfig = Annotated[
    NaiveConfig | BatchConfig | ParallelConfig | ModelConfig,
    Field(discriminator="name"),
]


class DapoConfig(_Config):
    """DAPO's soft penalty for overlong responses, added to the rewards of another manager.

    Attributes:
        max_tokens: Maximum number of tokens of a response, of an agent in all its turns.
        overlong: Shape of the penalty below that maximum.
        scores: Manager whose rewards the penalty is added to.
    """

    name: Literal["dapo"] = "dapo"
    max_tokens: Annotated[int, Field(ge=1, strict=True)]
    overlong: OverlongConfig = OverlongConfig()
    scores: ScoringManagerConfig = NaiveConfig()

    @model_validator(mode="after")
    def _check_buffer(self) -> "DapoConfig":
        if self.overlong.buffer > self.max_tokens:
            raise ValueError(f"overlong.buffer={self.overlong.buffer} must not exceed max_tokens={self.max_tokens}")
        return self


ManagerConfig = Annotated[
    NaiveConfig | BatchConfig | ParallelConfig | ModelConfig | DapoConfig,
    Field(discriminator="name"),
]


class RewardConfig(_Config):
    """Reward of responses.

    Attributes:
        function: Function that scores a response; ``null`` with a reward model.
        manager: Manager that runs the function or the reward model.
    """

    function: FunctionConfig | None = None
    manager: ManagerConfig = NaiveConfig()

    @model_validator(mode="after")
    def _check_combination(self) -> "RewardConfig":
        scores = self.manager.scores if self.manager.name == "dapo" else self.manager
        if (scores.name == "model") != (self.function is None):
            allowed = "null" if scores.name == "model" else "set"
            raise ValueError(f"function must be {allowed} with manager.name={scores.name}")
        if self.function is None:
            return self
        if scores.name == "batch" and self.function.name != "custom":
            raise ValueError(
                f"manager.name=batch passes all samples at once, but function.name={self.function.name} takes one; "
                "allowed is custom"
            )
        for key, function in self.functions.items():
            _check_time_limits(key, function, scores)
            _check_single_score(key, function, scores)
        return self

    @property
    def functions(self) -> dict[str, OneFunctionConfig]:
        """The functions by key; only those of ``by_source`` are several."""
        function = self.function
        if not isinstance(function, BySourceConfig):
            return {} if function is None else {"function": function}
        chosen = {f"function.functions.{source}": each for source, each in function.functions.items()}
        return chosen if function.default is None else {**chosen, "function.default": function.default}

    def check_sources(self, sources: Sequence[str]) -> None:
        """Check that each dataset has a reward function.

        Raises:
            ValueError: A dataset has none; the message names it.
        """
        function = self.function
        if not isinstance(function, BySourceConfig) or function.default is not None:
            return
        unknown = [source for source in dict.fromkeys(sources) if source not in function.functions]
        if unknown:
            raise ValueError(
                f"reward.function.functions: has no function for data_source={', '.join(unknown)}; it has "
                f"{', '.join(function.functions)}; set one, or reward.function.default"
            )


def _check_single_score(key: str, function: OneFunctionConfig, scores: ScoringManagerConfig) -> None:
    if not isinstance(function, CustomConfig) or scores.name == "batch":
        return
    if yields(resolve(split_origin(function.function)[1])):
        raise ValueError(
            f"{key}.function={function.function}: yields, so a call returns no score; allowed is a function that "
            "returns one"
        )


def _may_never_finish(function: OneFunctionConfig) -> str:
    """Return the key of a function that a response can keep busy for ever, with its value; empty for others."""
    if isinstance(function, MathConfig | RegexConfig):
        return f"name={function.name}"
    is_endless = isinstance(function, CustomConfig) and function.function == REASONING_GYM
    return f"function={REASONING_GYM}" if is_endless else ""


def _check_time_limits(key: str, function: OneFunctionConfig, scores: ScoringManagerConfig) -> None:
    if (endless := _may_never_finish(function)) and scores.name != "parallel":
        raise ValueError(
            f"{key}.{endless} may never finish, and manager.name={scores.name} has no time limit; allowed is parallel"
        )
    if isinstance(function, CodeConfig) and isinstance(scores, ParallelConfig):
        least = function.time_limit + SANDBOX_START_SECONDS
        if scores.time_limit <= least:  # a program that hangs would look like a worker that hangs
            raise ValueError(
                f"manager.time_limit={scores.time_limit:g}: must be more than {least:g} "
                f"({key}.time_limit={function.time_limit:g} plus {SANDBOX_START_SECONDS:g} for the sandbox to start)"
            )
