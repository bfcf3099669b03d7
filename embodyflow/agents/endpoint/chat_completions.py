"""The API of chat completions: https://platform.openai.com/docs/api-reference/chat."""

import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from embodyflow.agents.endpoint.api_error import ApiError
from embodyflow.agents.endpoint.messages import normalize
from embodyflow.agents.endpoint.parameters import (
    Body,
    Ignored,
    PositiveInt,
    Refused,
    check_sampling,
    function_tools,
    read_body,
    reads_calls,
    smallest,
)
from embodyflow.agents.endpoint.turns import Turn, TurnRequest

_FIXED: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "functions": (),
    "function_call": (),
    "prediction": (),
    "web_search_options": (),
}


class ChatBody(Body):
    """Body of ``POST /v1/chat/completions``.

    Attributes:
        messages: The chat so far.
        seed: Without effect, as every draw is seeded by the run, the episode and the turn.
    """

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    stop: str | list[str] | None = None
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None
    logprobs: bool | None = None
    stream_options: dict[str, Any] | None = None

    n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    modalities: list[str] | None = None
    audio: Refused = None
    functions: Refused = None
    function_call: Refused = None
    prediction: Refused = None
    web_search_options: Refused = None

    seed: Ignored = None
    parallel_tool_calls: Ignored = None
    metadata: Ignored = None
    reasoning_effort: Ignored = None
    verbosity: Ignored = None


def read_chat(value: Any, temperature: float) -> tuple[ChatBody, TurnRequest]:
    """Return the body of a request, and the turn that it asks for.

    Args:
        value: Body as JSON.
        temperature: Temperature of the run's training episodes.

    Raises:
        ApiError: A parameter is wrong or cannot be honoured; the message names it.
    """
    body = read_body(ChatBody, value)
    check_sampling(body, _FIXED, temperature)
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if not all(stop):
        raise ApiError("stop: must be text of at least one character", param="stop")
    messages = [normalize(message, f"messages.{number}") for number, message in enumerate(body.messages)]
    request = TurnRequest(
        messages=tuple(messages),
        tools=function_tools(body.tools),
        reads_calls=reads_calls(body.tool_choice),
        stop=stop,
        max_tokens=smallest(body.max_tokens, body.max_completion_tokens),
    )
    return body, request


def chat_completion(body: ChatBody, turn: Turn) -> dict[str, Any]:
    """Return the answer to a request that does not stream."""
    message: dict[str, Any] = {"role": "assistant", "content": turn.text or None, "refusal": None}
    if turn.calls:
        message["tool_calls"] = _calls(turn)
    choice = {
        "index": 0,
        "message": message,
        "logprobs": _log_probs(turn) if body.logprobs else None,
        "finish_reason": turn.finish_reason,
    }
    return {**_head(body, turn, "chat.completion"), "choices": [choice], "usage": _usage(turn)}


def chat_chunks(body: ChatBody, turn: Turn) -> Iterator[dict[str, Any]]:
    """Yield the chunks of an answer that streams.

    The turn is sampled before its first chunk, so the text is one chunk and each call is another.
    """
    head = _head(body, turn, "chat.completion.chunk")
    counted = bool((body.stream_options or {}).get("include_usage"))

    def chunk(delta: dict[str, Any], finish_reason: str | None = None, log_probs: Any = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": log_probs, "finish_reason": finish_reason}
        return {**head, "choices": [choice], **({"usage": None} if counted else {})}

    yield chunk({"role": "assistant", "content": "", "refusal": None})
    if turn.text or body.logprobs:
        yield chunk({"content": turn.text}, log_probs=_log_probs(turn) if body.logprobs else None)
    for index, call in enumerate(_calls(turn)):
        yield chunk({"tool_calls": [{"index": index, **call}]})
    yield chunk({}, turn.finish_reason)
    if counted:
        yield {**head, "choices": [], "usage": _usage(turn)}


def _head(body: ChatBody, turn: Turn, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{turn.name}", "object": kind, "created": int(time.time()), "model": body.model}


def _calls(turn: Turn) -> list[dict[str, Any]]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.json_arguments}}
        for call in turn.calls
    ]


def _log_probs(turn: Turn) -> dict[str, Any]:
    return {"content": turn.log_probs(), "refusal": None}


def _usage(turn: Turn) -> dict[str, int]:
    total = turn.num_prompt_tokens + turn.num_sampled_tokens
    return {
        "prompt_tokens": turn.num_prompt_tokens,
        "completion_tokens": turn.num_sampled_tokens,
        "total_tokens": total,
    }
