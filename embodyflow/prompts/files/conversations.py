"""Chats as datasets store them: OpenAI's messages, and the conversations of ShareGPT."""

from collections.abc import Mapping
from typing import Any

from embodyflow.errors import ConfigError
from embodyflow.prompts.files.columns import abbreviate

Message = dict[str, Any]

SHAREGPT_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "tool": "tool",
    "observation": "tool",
}
"""Role of a message by the sender that ShareGPT names."""
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
"""Roles of messages. Chat templates leave others out, or write them as if they were known."""


def read_messages(value: Any, column: str, where: str) -> list[Message]:
    """Return a chat as messages with role and content.

    Args:
        value: List of ``{"role": …, "content": …}`` or of ``{"from": …, "value": …}``.
        column: Name of the column, for the error message.
        where: Place of the row, for the error message.

    Raises:
        ConfigError: The value is neither, or a message has another role or no content.
    """
    if isinstance(value, list) and value and all(isinstance(turn, Mapping) for turn in value):
        if all({"role", "content"} <= turn.keys() for turn in value):
            return [_checked(dict(turn), column, where) for turn in value]
        if all({"from", "value"} <= turn.keys() for turn in value):
            return [_checked(_from_sharegpt(turn, column, where), column, where) for turn in value]
    raise ConfigError(
        f"{where}: column {column} is not a chat; allowed is a list of messages with role and content, or from and "
        "value"
    )


def _checked(message: Message, column: str, where: str) -> Message:
    role, content = message["role"], message["content"]
    if role not in ROLES:
        raise ConfigError(
            f"{where}: column {column} has a message with the role {abbreviate(role)}; allowed are {', '.join(ROLES)}"
        )
    if isinstance(content, str):
        is_given = bool(content.strip()) or role != "user"
    elif isinstance(content, list):
        is_given = bool(content)
    else:
        is_given = role == "assistant" and bool(message.get("tool_calls"))  # it calls tools in place of an answer
    if not is_given:
        raise ConfigError(
            f"{where}: column {column} has a message of {role} with the content {abbreviate(content)}; allowed is text"
        )
    return message


def split_last_answer(messages: list[Message], column: str, where: str) -> tuple[list[Message], str]:
    """Return the messages before the last one, and the content of the last one, an answer of the assistant.

    Raises:
        ConfigError: The last message is not an answer in text, or nothing comes before it.
    """
    *asked, answer = messages
    if answer["role"] != "assistant" or not isinstance(answer["content"], str):
        raise ConfigError(
            f"{where}: column {column} ends with a message of {answer['role']}; needs an answer to imitate"
        )
    if not any(message["role"] != "system" for message in asked):
        raise ConfigError(f"{where}: column {column} has no message before the answer; needs one of the user")
    return asked, answer["content"]


def _from_sharegpt(turn: Mapping[str, Any], column: str, where: str) -> Message:
    role = SHAREGPT_ROLES.get(turn["from"])
    if role is None:
        raise ConfigError(
            f"{where}: column {column} has a message from {abbreviate(turn['from'])}; "
            f"allowed are {', '.join(SHAREGPT_ROLES)}"
        )
    return {"role": role, "content": turn["value"]}
