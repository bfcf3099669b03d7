"""Checks of parameters that both APIs have.

A parameter that would change how tokens are drawn is refused: the run's own sampling settings hold for all turns, and
the recorded log-probs belong to them. Unknown parameters are refused for the same reason. Parameters without such an
effect are accepted.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from embodyflow.agents.endpoint.api_error import ApiError

PositiveInt = Annotated[int, Field(ge=1, strict=True)]
Ignored = object
"""Parameter that is accepted and has no effect."""
Refused = object
"""Parameter that only ``null`` is allowed for."""
SAMPLING: Mapping[str, tuple[Any, ...]] = {"top_p": (1,), "top_logprobs": (0,)}
"""Allowed values of parameters that both APIs have."""


class Body(BaseModel):
    """Parameters of a request that both APIs have; an unknown parameter is an error.

    Attributes:
        model: Any name; one model is served.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str = "policy"
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    stream: bool | None = None

    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None

    moderation: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_options: Ignored = None
    prompt_cache_retention: Ignored = None
    safety_identifier: Ignored = None
    service_tier: Ignored = None
    store: Ignored = None
    user: Ignored = None


B = TypeVar("B", bound=Body)


def read_body(kind: type[B], value: Any) -> B:
    """Return the body of a request with its types.

    Raises:
        ApiError: A parameter is missing, unknown or of another type; the message names it.
    """
    if not isinstance(value, Mapping):
        raise ApiError("the body must be a JSON object")
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        param = ".".join(str(part) for part in first["loc"][:2] if not isinstance(part, str) or part in value)
        name = param or str(first["loc"][0])
        if first["type"] == "extra_forbidden":
            raise ApiError(f"{name}: this server has no such parameter; leave it out", param=name) from error
        raise ApiError(f"{name}: {first['msg'].lower()}", param=name) from error


def check_sampling(body: Body, fixed: Mapping[str, tuple[Any, ...]], temperature: float) -> None:
    """Check that a request asks for the sampling of the run.

    Args:
        body: Body of the request.
        fixed: Allowed values by parameter, besides :data:`SAMPLING`; ``None`` is always allowed.
        temperature: Temperature of the run's training episodes.

    Raises:
        ApiError: A parameter asks for another distribution; the message names it and the allowed values.
    """
    fixed = {**SAMPLING, **fixed, "temperature": (temperature,)}
    for name, allowed in fixed.items():
        value = getattr(body, name)
        if value is not None and value not in allowed:
            only = f"must be {' or '.join(map(str, allowed))}, or be left out" if allowed else "leave it out"
            hint = "; rollout.temperature sets the temperature of all turns" if name == "temperature" else ""
            raise ApiError(f"{name}={value!r}: {only}{hint}", param=name, code="unsupported_value")


def function_tools(tools: Sequence[Mapping[str, Any]] | None) -> tuple[Mapping[str, Any], ...]:
    """Return the schemas of tools, all of which are functions.

    Args:
        tools: Tools as the API of chat completions has them.

    Raises:
        ApiError: A tool is no function or has no name.
    """
    for number, tool in enumerate(tools or ()):
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, Mapping) or not function.get("name"):
            raise ApiError(f"tools.{number}: must be a function with a name", param="tools")
    return tuple(tools or ())


def reads_calls(tool_choice: str | Mapping[str, Any] | None) -> bool:
    """Return False if the request wants text only.

    ``required`` and the choice of one tool have the effect of ``auto``: forcing a call would change the distribution.

    Raises:
        ApiError: The choice is not one that the API has.
    """
    if isinstance(tool_choice, str) and tool_choice not in ("auto", "none", "required"):
        raise ApiError(f"tool_choice={tool_choice}: must be auto, none, required or a function", param="tool_choice")
    return tool_choice != "none"


def smallest(*limits: int | None) -> int | None:
    """Return the smallest limit that is given."""
    return min((limit for limit in limits if limit is not None), default=None)
