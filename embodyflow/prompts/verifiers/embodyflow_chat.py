"""A harness of verifiers: the model chats and calls the tools of its task, until it answers without a call.

It is verifiers' harness ``null`` without a process for each episode and without an installation of packages by uv. It
imports verifiers and nothing of embodyflow; verifiers finds it by its name.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, ClassVar

import httpx
from verifiers.v1 import Harness, HarnessConfig, ProgramResult
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp

__all__ = ["ChatHarness"]

LIMITS = ("context_length_exceeded", "max_turns")
"""Codes of a refused turn that end an episode at a limit of the run. Its reward counts."""


class ChatHarnessConfig(HarnessConfig):
    """Configuration of the harness."""


class ChatHarness(Harness[ChatHarnessConfig]):
    """A chat in the process of the environment."""

    APPENDS_SYSTEM_PROMPT: ClassVar[bool] = True
    SUPPORTS_MCP: ClassVar[bool] = True
    SUPPORTS_RESUME: ClassVar[bool] = True
    EXECUTES_CODE: ClassVar[bool] = False
    NEEDS_CONTAINER: ClassVar[bool] = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> Any:
        """Chat until the model answers without a call, or a limit refuses a turn."""
        async with AsyncExitStack() as stack:
            servers = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
            tools = await connect_mcp({"mcpServers": servers}, stack)
            headers = {"Authorization": f"Bearer {secret}"}
            transport = httpx.AsyncHTTPTransport(verify=False)  # a certificate store takes long to load, and it is http
            client = httpx.AsyncClient(base_url=endpoint, headers=headers, timeout=None, transport=transport)
            await stack.enter_async_context(client)
            return await _chat(client, ctx.model, self._messages(data), tools)

    def _messages(self, data: Any) -> list[dict[str, Any]]:
        system, prompt = self.resolve_prompt(data)
        first = [{"role": "system", "content": system}] if system is not None else []
        if isinstance(prompt, str):
            return [*first, {"role": "user", "content": prompt}]
        return [*first, *(message_to_wire(message) for message in prompt or ())]


async def _chat(client: httpx.AsyncClient, model: str, messages: list[dict[str, Any]], tools: Any) -> Any:
    schemas, dispatch, servers = tools
    body = {"model": model, **({"tools": schemas} if schemas else {})}
    while True:
        answer = await client.post("chat/completions", json={**body, "messages": messages})
        if answer.status_code >= 400:
            is_limit = any(code in answer.text for code in LIMITS)
            return ProgramResult(exit_code=0 if is_limit else 1, stdout="", stderr=answer.text)
        message = answer.json()["choices"][0]["message"]
        messages.append(message)
        if not message.get("tool_calls"):
            return ProgramResult(exit_code=0, stdout="", stderr="")
        for call in message["tool_calls"]:
            content = await _call(call["function"], dispatch, servers)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})


async def _call(function: Mapping[str, Any], dispatch: Mapping[str, Sequence[str]], servers: Any) -> Any:
    """Return a tool's answer, or what is wrong with the call, as text for the model."""
    name = function["name"]
    if name not in dispatch:
        return f"error: unknown tool {name!r}"
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError as error:
        return f"error: the arguments are not JSON: {error}"
    if not isinstance(arguments, dict):
        return "error: the arguments must be a JSON object"
    return await call_mcp(servers, dispatch, name, arguments)
