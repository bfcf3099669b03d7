"""Programs that play episodes, as scripts of their own and as functions."""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from embodyflow.agents.endpoint.client_settings import ClientSettings

SCRIPT = os.path.abspath(__file__)


def complete(base_url: str, api_key: str, messages: Sequence[Any], **parameters: Any) -> dict[str, Any]:
    """Return the model's message, through the standard library: importing a client takes a second."""
    body = json.dumps({"model": "any", "messages": messages, **parameters}).encode()
    headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{base_url}/chat/completions", body, headers)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
        message: dict[str, Any] = json.load(answer)["choices"][0]["message"]
        return message


async def interview(client: ClientSettings, row: Mapping[str, Any]) -> float:
    """Ask twice; return how many characters the model wrote."""
    print("a line that is no reward")
    messages = list(row["messages"])
    for _ in range(2):
        messages.append(complete(client.base_url, client.api_key, messages, max_tokens=4))
        messages.append({"role": "user", "content": row["ground_truth"]})
    return float(sum(len(message["content"] or "") for message in messages if message["role"] == "assistant"))


def silent(client: ClientSettings, row: Mapping[str, Any]) -> None:
    """Ask once and give no reward."""
    complete(client.base_url, client.api_key, row["messages"])


def main(number: str, deaths: str = "") -> None:
    """Play an interview of some turns as a script, which knows of nothing but its environment.

    In a folder ``deaths`` that exists, it dies after its first turn, once for each seed.
    """
    row = json.load(sys.stdin)
    messages = row["messages"]
    for _ in range(int(number)):
        message = complete(os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"], messages, max_tokens=4)
        messages += [message, {"role": "user", "content": "="}]
        _die_once(deaths, str(row["seed"]))
    written = "".join(message["content"] or "" for message in messages if message["role"] == "assistant")
    print(json.dumps({"reward": len(written), "success": row["ground_truth"] == "408"}))


def _die_once(folder: str, name: str) -> None:
    marker = os.path.join(folder, name)
    if os.path.isdir(folder) and not os.path.exists(marker):
        with open(marker, "w"):
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
