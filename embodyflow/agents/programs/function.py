"""Process of a function that plays an episode: ``python -m embodyflow.agents.programs.function module:function``.

It speaks as any program does: the row comes by stdin, the client's settings by the environment, and the last line of
stdout is the reward. What the function prints goes to stderr.
"""

import asyncio
import inspect
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from embodyflow.agents.endpoint.client_settings import ClientSettings
from embodyflow.references import resolve


def main(reference: str) -> None:
    """Play the episode and print its reward as JSON."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    settings = ClientSettings(os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"])
    reward = asyncio.run(_play(reference, settings, json.load(sys.stdin)))
    print(json.dumps(reward, default=_as_json), file=output, flush=True)


async def _play(reference: str, settings: ClientSettings, row: Mapping[str, Any]) -> Any:
    reward = resolve(reference)(settings, row)
    return await reward if inspect.isawaitable(reward) else reward


def _as_json(value: Any) -> Any:
    """Return a number of NumPy or torch as one of Python, and text for anything else, which is no reward."""
    return value.item() if hasattr(value, "item") else repr(value)


if __name__ == "__main__":
    main(sys.argv[1])
