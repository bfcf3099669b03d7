"""Which reward function scores a response, and which manager runs it.

Two choices, each a union told apart by ``name``: what is right (``function``) and how it is asked (``manager``).
"""

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from embodyflow.algorithms.algorithm_config import OverlongConfig
from embodyflow.references import resolve

Positive = Annotated[float, Field(gt=0)]

SANDBOX_START_SECONDS = 30.0
"""How long a sandbox has before the program in it starts."""


class _Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ExactMatchConfig(_Config):
    """The text after a marker is the ground truth, spaces around it aside.

    Attributes:
        marker: what the final answer stands after, its last occurrence; ``null`` takes the whole response.
    """

    name: Literal["exact_match"] = "exact_match"
    marker: Annotated[str, Field(min_length=1)] | None = "##"


class GSM8KConfig(_Config):
    """The number on the line after the last ``####`` is the ground truth's (Cobbe et al. 2021, arXiv:2110.14168).

    The ground truth is a number or a whole worked answer that ends so.
    """

    name: Literal["gsm8k"] = "gsm8k"


class RegexConfig(_Config):
    """What the pattern's group matches is the ground truth, spaces around it aside.

    Attributes:
        pattern: of Python's ``re``, with one group; its last match counts.
    """

    name: Literal["regex"] = "regex"
    pattern: str

    @field_validator("pattern")
    @classmethod
    def _has_one_group(cls, pattern: str) -> str:
        try:
            num_groups = re.compile(pattern).groups
        except re.error as error:
            raise ValueError(f"is no regular expression: {error}") from error
        if num_groups != 1:
            raise ValueError(f"has {num_groups} groups; allowed is one, around the answer")
        return pattern


class MathConfig(_Config):
    r"""What the last ``\boxed{}`` holds equals the ground truth as mathematics, by the library math-verify.

    The ground truth is LaTeX, with or without a box around the answer.
    """

    name: Literal["math"] = "math"


class CodeConfig(_Config):
    """The last fenced block of Python in the response passes the tests that are the ground truth.

    The tests are Python source, assertions by custom, run after the response's code in the same namespace, in a process
    of their own (:mod:`embodyflow.rewards.functions.sandbox`).

    Attributes:
        time_limit: seconds, imports included.
        memory_gb: GB (10⁹ bytes) of address space of each process.
        isolation: ``namespaces`` of the kernel keep it off the network, off others' files and end whatever it starts;
            ``guard`` refuses network, new processes and foreign functions from within the interpreter, for honest
            mistakes only; ``auto`` takes the first where the kernel permits it.
    """

    name: Literal["code"] = "code"
    time_limit: Positive = 10.0
    memory_gb: Positive = 1.0
    isolation: Literal["auto", "namespaces", "guard"] = "auto"


class CustomConfig(_Config):
    """A function of one's own.

    Attributes:
        function: ``"module:function"`` of ``(sample, **kwargs) -> Score``; with the manager ``batch`` of
            ``(samples, **kwargs) -> list of Score``.
        kwargs: passed on.
    """

    name: Literal["custom"] = "custom"
    function: str
    kwargs: dict[str, Any] = {}

    @field_validator("function")
    @classmethod
    def _exists(cls, function: str) -> str:
        if ":" not in function:
            raise ValueError("names no module; write 'module:function'")
        try:
            found = resolve(function)
        except ImportError as error:
            raise ValueError(str(error)) from error
        if not callable(found):
            raise ValueError(f"is a {type(found).__name__}; allowed is a function")
        return function


FunctionConfig = Annotated[
    ExactMatchConfig | GSM8KConfig | MathConfig | RegexConfig | CodeConfig | CustomConfig,
    Field(discriminator="name"),
]


class NaiveConfig(_Config):
    """One sample after the other in the calling process, without a time limit: for functions that are quick."""

    name: Literal["naive"] = "naive"


class BatchConfig(_Config):
    """All samples in one call of a custom function."""

    name: Literal["batch"] = "batch"


class ParallelConfig(_Config):
    """Samples spread over processes, each with a deadline.

    Attributes:
        num_workers: processes.
        time_limit: seconds for one sample.
        memory_gb: GB (10⁹ bytes) of address space of each process; ``null`` for functions that use CUDA, which
            reserves far more than it takes.
        retries: how often a sample is tried again whose process hung or died.
        overdue: what a sample is that hung each time: an ``error`` that ends the run, or ``incorrect``, with the part
            ``timed_out``, where a response can bring the function to hang, as with mathematics.
    """

    name: Literal["parallel"] = "parallel"
    num_workers: Annotated[int, Field(ge=1, strict=True)] = 2
    time_limit: Positive = 10.0
    memory_gb: Positive | None = 4.0
    retries: Annotated[int, Field(ge=0, strict=True)] = 1
    overdue: Literal["error", "incorrect"] = "error"


class ModelConfig(_Config):
    """A reward model: a sequence classifier of ``transformers`` with one output.

    Attributes:
        path: folder or hub name.
        template: what it reads; ``{prompt}`` and ``{response}`` are filled in.
        batch_size: responses in one forward pass.
        max_tokens: of what it reads; longer is an error, never cut.
        device: it runs on.
        dtype: of its weights.
        correct_above: reward above which a response counts as correct.
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
    def _shows_the_response(cls, template: str) -> str:
        if "{response}" not in template:
            raise ValueError("shows no {response}")
        return template


ScoringManagerConfig = Annotated[
    NaiveConfig | BatchConfig | ParallelConfig | ModelConfig,
    Field(discriminator="name"),
]


class DapoConfig(_Config):
    """DAPO's soft punishment of overlong responses, added to another manager's rewards.

    Attributes:
        max_tokens: limit of a response.
        overlong: how the penalty grows before the limit.
        scores: the other manager.
    """

    name: Literal["dapo"] = "dapo"
    max_tokens: Annotated[int, Field(ge=1, strict=True)]
    overlong: OverlongConfig = OverlongConfig()
    scores: ScoringManagerConfig = NaiveConfig()

    @model_validator(mode="after")
    def _fits(self) -> "DapoConfig":
        if self.overlong.buffer > self.max_tokens:
            raise ValueError(f"overlong.buffer={self.overlong.buffer} must not exceed max_tokens={self.max_tokens}")
        return self


ManagerConfig = Annotated[
    NaiveConfig | BatchConfig | ParallelConfig | ModelConfig | DapoConfig,
    Field(discriminator="name"),
]


class RewardConfig(_Config):
    """Where rewards come from.

    Attributes:
        function: says what a response is worth; ``null`` where a reward model does.
        manager: runs it.
    """

    function: FunctionConfig | None = None
    manager: ManagerConfig = NaiveConfig()

    @model_validator(mode="after")
    def _fit(self) -> "RewardConfig":
        scores = self.manager.scores if self.manager.name == "dapo" else self.manager
        if (scores.name == "model") != (self.function is None):
            allowed = "null" if scores.name == "model" else "set"
            raise ValueError(f"function must be {allowed} with manager.name={scores.name}")
        if self.function is None:
            return self
        if scores.name == "batch" and self.function.name != "custom":
            raise ValueError(
                f"manager.name=batch passes all samples at once, which function.name={self.function.name} does not "
                "take; allowed is custom"
            )
        if self.function.name == "math" and scores.name != "parallel":
            raise ValueError(
                f"function.name=math can take for ever, and manager.name={scores.name} has no time limit; "
                "allowed is parallel"
            )
        if isinstance(self.function, CodeConfig) and isinstance(scores, ParallelConfig):
            least = self.function.time_limit + SANDBOX_START_SECONDS
            if scores.time_limit <= least:  # a program that hangs would be taken for a process that does
                raise ValueError(
                    f"manager.time_limit={scores.time_limit:g}: must be more than {least:g}, "
                    f"function.time_limit={self.function.time_limit:g} and {SANDBOX_START_SECONDS:g} for the sandbox "
                    "to start"
                )
        return self
