"""Requests to a generation server: bounded retries, errors told in one line, answers in parts."""

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

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 10.0  # seconds before a further attempt; each pause is twice the one before
BUSY_OR_FAILED = {408, 429, 500, 502, 503, 504}


class HTTPClient:
    """Reaches one server from several threads.

    Raises:
        ConfigError: the environment variable with its key is not set.
    """

    def __init__(self, config: RemoteConfig) -> None:
        headers = {}
        if config.api_key_env is not None:
            if config.api_key_env not in os.environ:
                raise ConfigError(f"api_key_env={config.api_key_env}: this environment variable is not set")
            headers["Authorization"] = f"Bearer {os.environ[config.api_key_env]}"
        self._url, self._max_retries = config.base_url.rstrip("/"), config.max_retries
        self._client = httpx.Client(
            headers=headers, timeout=config.timeout, limits=httpx.Limits(max_connections=config.max_concurrency)
        )
        self.close = self._client.close

    def get(self, path: str) -> Any:
        """Return the answer's JSON.

        Raises:
            GenerationError: the server refused, or did not answer in ``max_retries`` further attempts.
        """
        return self._repeat(path, lambda: _json(self._client.get(self._url + path)))

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Return the answer's JSON; raises as :meth:`get`. Only for what may be done twice."""
        return self._repeat(path, lambda: _json(self._client.post(self._url + path, json=body)))

    def post_streaming(self, path: str, body: dict[str, Any], abandoned: Event) -> list[Any]:
        """Return the JSON of all parts of an answer in server-sent events; raises as :meth:`get`.

        The time-out holds for each part. An answer that breaks off is asked for again from its beginning.

        Args:
            path: on the server.
            body: sent as JSON.
            abandoned: once it is set nobody wants the answer: the connection is closed, so that the server stops too.
        """

        def attempt() -> list[Any]:
            with self._client.stream("POST", self._url + path, json=body) as response:
                if response.is_error:
                    response.read()
                    response.raise_for_status()
                return list(takewhile(lambda _: not abandoned.is_set(), _parts(response)))

        return self._repeat(path, attempt, abandoned)

    def _repeat(self, path: str, attempt: Callable[[], Any], abandoned: Event | None = None) -> Any:
        last: Exception | None = None
        for attempts in range(self._max_retries + 1):
            if attempts and (abandoned or Event()).wait(min(FIRST_PAUSE * 2 ** (attempts - 1), LONGEST_PAUSE)):
                break
            try:
                return attempt()
            except httpx.HTTPStatusError as error:
                reason, last = f"{error.response.status_code} {error.response.text[:500]}", error
                if error.response.status_code not in BUSY_OR_FAILED:
                    break
            except httpx.TransportError as error:
                reason, last = f"{type(error).__name__} {error}", error
        raise GenerationError(f"{self._url}{path}: attempt {attempts + 1}: {reason}") from last


def _json(response: httpx.Response) -> Any:
    response.raise_for_status()
    return response.json() if response.content else None


def _parts(response: httpx.Response) -> Iterator[Any]:
    """Yield the JSON of server-sent events until the last one."""
    for line in response.iter_lines():
        if line.startswith("data: "):
            if line == "data: [DONE]":
                return
            part = json.loads(line.removeprefix("data: "))
            if "error" in part:
                raise GenerationError(f"{response.url}: {part['error']}")
            yield part
    raise httpx.RemoteProtocolError("the answer broke off")
