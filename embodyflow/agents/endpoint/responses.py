"""The API of responses: https://platform.openai.com/docs/api-reference/responses."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from embodyflow.agents.chat.chat_format import Message
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
)
from embodyflow.agents.endpoint.turns import Call, Turn, TurnRequest

_FIXED: Mapping[str, tuple[Any, ...]] = {
    "truncation": ("disabled",),
    "background": (False,),
    "conversation": (),
    "prompt": (),
    "context_management": (),
}
_LOG_PROBS = "message.output_text.logprobs"
History = Callable[[str], Sequence[Message]]
"""Returns the messages up to a response and with it, without instructions, by the response's id."""


class ResponseBody(Body):
    """Body of ``POST /v1/responses``.

    Attributes:
        input: Text of the user, or items: messages, function calls and their outputs.
        instructions: System message before the input.
        previous_response_id: Id of the response that the input follows.
    """

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: PositiveInt | None = None
    include: list[str] | None = None
    text: dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, Any] | None = None

    truncation: str | None = None
    background: bool | None = None
    conversation: Refused = None
    prompt: Refused = None
    context_management: Refused = None

    max_tool_calls: Ignored = None
    reasoning: Ignored = None
    stream_options: Ignored = None


def read_response_request(value: Any, temperature: float, history: History) -> tuple[ResponseBody, TurnRequest]:
    """Return the body of a request, and the turn that it asks for.

    Args:
        value: Body as JSON.
        temperature: Temperature of the run's training episodes.
        history: Messages by the id of an earlier response.

    Raises:
        ApiError: A parameter is wrong or cannot be honoured; the message names it.
    """
    body = read_body(ResponseBody, value)
    check_sampling(body, _FIXED, temperature)
    if (body.text or {}).get("format", {"type": "text"}) != {"type": "text"}:
        raise ApiError("text.format: must be text, or be left out", param="text", code="unsupported_value")
    messages: list[Message] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    if body.previous_response_id is not None:
        messages += history(body.previous_response_id)
    messages += _messages([{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input)
    if not messages:
        raise ApiError("input: needs at least one item", param="input")
    tools = [
        {"type": tool.get("type"), "function": {name: part for name, part in tool.items() if name != "type"}}
        for tool in body.tools or ()
    ]
    choice = body.tool_choice
    return body, TurnRequest(tuple(messages), function_tools(tools), reads_calls(choice), (), body.max_output_tokens)


def response_id(turn: Turn) -> str:
    """Return the id of the response that a turn is."""
    return f"resp_{turn.name}"


def response_object(body: ResponseBody, turn: Turn) -> dict[str, Any]:
    """Return the answer to a request that does not stream."""
    is_cut = turn.finish_reason == "length"
    return {
        **_head(body, turn),
        "status": "incomplete" if is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "output": list(_items(body, turn)),
        "usage": {
            "input_tokens": turn.num_prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": turn.num_sampled_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": turn.num_prompt_tokens + turn.num_sampled_tokens,
        },
    }


def response_events(body: ResponseBody, turn: Turn) -> Iterator[dict[str, Any]]:
    """Yield the events of an answer that streams.

    The turn is sampled before its first event, so each text and each call's arguments are one delta.
    """
    numbers = count()

    def event(kind: str, **values: Any) -> dict[str, Any]:
        return {"type": f"response.{kind}", "sequence_number": next(numbers), **values}

    whole = response_object(body, turn)
    begun = {**_head(body, turn), "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    yield event("created", response=begun)
    yield event("in_progress", response=begun)
    for index, item in enumerate(whole["output"]):
        place = {"item_id": item["id"], "output_index": index}
        empty: dict[str, Any] = {"content": []} if item["type"] == "message" else {"arguments": ""}
        yield event("output_item.added", output_index=index, item={**item, **empty, "status": "in_progress"})
        if item["type"] == "message":
            [part] = item["content"]
            text, log_probs = part["text"], part["logprobs"]
            at = {**place, "content_index": 0}
            yield event("content_part.added", **at, part={**part, "text": "", "logprobs": []})
            yield event("output_text.delta", **at, delta=text, logprobs=log_probs)
            yield event("output_text.done", **at, text=text, logprobs=log_probs)
            yield event("content_part.done", **at, part=part)
        else:
            yield event("function_call_arguments.delta", **place, delta=item["arguments"])
            yield event("function_call_arguments.done", **place, name=item["name"], arguments=item["arguments"])
        yield event("output_item.done", output_index=index, item=item)
    yield event("incomplete" if whole["status"] == "incomplete" else "completed", response=whole)


def _head(body: ResponseBody, turn: Turn) -> dict[str, Any]:
    return {
        "id": response_id(turn),
        "object": "response",
        "created_at": int(time.time()),
        "error": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "model": body.model,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": None, "summary": None},
        "store": True,
        "temperature": body.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": body.tool_choice or "auto",
        "tools": body.tools or [],
        "top_p": body.top_p,
        "truncation": "disabled",
    }


def _items(body: ResponseBody, turn: Turn) -> Iterator[dict[str, Any]]:
    status = "incomplete" if turn.finish_reason == "length" else "completed"
    if turn.text or not turn.calls:
        log_probs = turn.log_probs() if _LOG_PROBS in (body.include or ()) else []
        part = {"type": "output_text", "text": turn.text, "annotations": [], "logprobs": log_probs}
        message = {"type": "message", "id": f"msg_{turn.name}", "role": "assistant", "status": status}
        yield {**message, "content": [part]}
    for number, call in enumerate(turn.calls):
        yield _call_item(call, f"fc_{turn.name}-{number}", status)


def _call_item(call: Call, item_id: str, status: str) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": item_id,
        "call_id": call.id,
        "name": call.name,
        "arguments": call.json_arguments,
        "status": status,
    }


def _messages(items: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return the messages that items stand for; the calls after a message of the assistant are part of it."""
    messages: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        place, kind = f"input.{number}", item.get("type", "message")
        if kind == "message":
            messages.append(dict(normalize(item, place)))
        elif kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments", {})}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            [call] = normalize({"role": "assistant", "tool_calls": [call]}, place)["tool_calls"]
            messages[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            answer = {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
            messages.append(dict(normalize(answer, place)))
        else:
            allowed = "message, function_call, function_call_output"
            raise ApiError(f"{place}.type={kind!r}: must be one of {allowed}", param="input")
    return list(messages)
