"""Messages of clients in one form, so that equal messages are equal whichever client sent them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from embodyflow.agents.chat.chat_format import Message
from embodyflow.agents.endpoint.api_error import ApiError

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""Role that the chat template knows, by the role of a client."""

_TEXT_PARTS = ("text", "input_text", "output_text")


def normalize(message: Mapping[str, Any], place: str) -> Message:
    """Return a message as the chat template takes it.

    Clients write the same message in several ways: no text as ``null``, ``""`` or not at all, a text as a list of
    parts, arguments as JSON with other spaces. They also add keys of their own, which are left out.

    Args:
        message: Message of a chat.
        place: Name of the message in the request, for errors.

    Raises:
        ApiError: The message has another role or holds something other than text.
    """
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise ApiError(f"{place}.role={role!r}: must be one of {', '.join(ROLES)}", param=place)
    plain: dict[str, Any] = {"role": ROLES[role], "content": _text(message.get("content"), place)}
    if role == "assistant" and message.get("tool_calls"):
        plain["tool_calls"] = [_call(call, place) for call in message["tool_calls"]]
    if role == "tool":
        plain["tool_call_id"] = message.get("tool_call_id")
    if isinstance(message.get("name"), str) and role != "assistant":
        plain["name"] = message["name"]
    return plain


def continuation(known: Sequence[Message], messages: Sequence[Message]) -> Sequence[Message] | None:
    """Return the messages after those that are known; ``None`` if they do not continue a conversation.

    Args:
        known: Messages of the conversation, of which the last is a turn of the model.
        messages: Messages of a request.
    """
    new = messages[len(known) :]
    if not new or list(messages[: len(known)]) != list(known) or any(each["role"] == "assistant" for each in new):
        return None
    return new


def _text(content: Any, place: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, Mapping) for part in content):
        kinds = {part.get("type") for part in content}
        if kinds <= set(_TEXT_PARTS) and all(isinstance(part.get("text"), str) for part in content):
            return "".join(part["text"] for part in content)
        raise ApiError(f"{place}.content: must be text, has {', '.join(sorted(map(str, kinds)))}", param=place)
    raise ApiError(f"{place}.content: must be text or a list of parts", param=place)


def _call(call: Any, place: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ApiError(f"{place}.tool_calls: each needs a function with a name", param=place)
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise ApiError(f"{place}.tool_calls: arguments must be JSON", param=place) from error
    return {"id": call.get("id"), "type": "function", "function": {"name": function["name"], "arguments": arguments}}
