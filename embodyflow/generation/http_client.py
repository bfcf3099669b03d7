"""HTTP client of a generation server: bounded retries, streamed responses and errors of one line."""

import json
import os
from collections.abc import Callable, Iterator
from itertools import takewhile
from threading import Event
from typing import Any

import httpx

from embodyflow.config.generation import RemoteConfig
from embodyflow.errors import ConfigError
from embodyflow.generation.interface import GenerationError
from embodyflow.process.variables import withhold

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 10.0  # seconds of exponential backoff between attempts
RETRIED_STATUS_CODES = {408, 429, 500, 502, 503, 504}


class HTTPClient:
    """A thread-safe client of one server.

    Args:
        config: Address, timeout, retries and API key of the server.

    Raises:
        ConfigError: The environment variable with the API key is not set.
    """

    def __init__(self, config: RemoteConfig) -> None:
        headers = {}
        if config.api_key_env is not None:
            if config.api_key_env not in os.environ:
                raise ConfigError(f"api_key_env={config.api_key_env}: the environment variable is not set")
            withhold(config.api_key_env)
            headers["Authorization"] = f"Bearer {os.environ[config.api_key_env]}"
        self._url, self._max_retries = config.base_url.rstrip("/"), config.max_retries
        self._client = httpx.Client(
            headers=headers, timeout=config.timeout, limits=httpx.Limits(max_connections=config.max_concurrency)
        )
        self.close = self._client.close

    def get(self, path: str) -> Any:
        """Return the JSON of the response to a GET request.

        Raises:
            GenerationError: The server refused the request, or all ``max_retries`` retries failed.
        """
        return self._retry(path, lambda: _json(self._client.get(self._url + path)))

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Return the JSON of the response to an idempotent POST request; errors are those of :meth:`get`."""
        return self._retry(path, lambda: _json(self._client.post(self._url + path, json=body)))

    def post_streaming(self, path: str, body: dict[str, Any], abandoned: Event) -> list[Any]:
        """Return the JSON of all server-sent events in a response; errors are those of :meth:`get`.

        The timeout applies to each event. If the stream ends early, the whole request is retried.

        Args:
            path: Path on the server.
            body: Request body, sent as JSON.
            abandoned: Flag that ends the request: once it is set, the connection closes and the server stops too.
        """

        def attempt() -> list[Any]:
            with self._client.stream("POST", self._url + path, json=body) as response:
                if response.is_error:
                    response.read()
                    response.raise_for_status()
                return list(takewhile(lambda _: not abandoned.is_set(), _events(response)))

        return self._retry(path, attempt, abandoned)

    def _retry(self, path: str, attempt: Callable[[], Any], abandoned: Event | None = None) -> Any:
        last: Exception | None = None
        for attempts in range(self._max_retries + 1):
            if attempts and (abandoned or Event()).wait(min(FIRST_PAUSE * 2 ** (attempts - 1), LONGEST_PAUSE)):
                break
            try:
                return attempt()
            except httpx.HTTPStatusError as error:
                reason, last = f"{error.response.status_code} {error.response.text[:500]}", error
                if error.response.status_code not in RETRIED_STATUS_CODES:
                    break
            except httpx.TransportError as error:
                reason, last = f"{type(error).__name__} {error}", error
        raise GenerationError(f"{self._url}{path}: attempt {attempts + 1}: {reason}") from last


def _json(response: httpx.Response) -> Any:
    response.raise_for_status()
    return response.json() if response.content else None


def _events(response: httpx.Response) -> Iterator[Any]:
    """Yield the JSON of server-sent events up to ``[DONE]``."""
    for line in response.iter_lines():
        if line.startswith("data: "):
            if line == "data: [DONE]":
                return
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise GenerationError(f"{response.url}: {event['error']}")
            yield event
    raise httpx.RemoteProtocolError("the response ended early")
