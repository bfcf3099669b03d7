"""The HTTP server of a rollout worker.

It listens on the loopback interface and runs in the event loop of the episodes. Every episode has a key of its own,
which names it, so episodes that run side by side share the server.
"""

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from embodyflow.agents.endpoint.api_error import ApiError
from embodyflow.agents.endpoint.chat_completions import chat_chunks, chat_completion, read_chat
from embodyflow.agents.endpoint.client_settings import ClientSettings
from embodyflow.agents.endpoint.responses import read_response_request, response_events, response_id, response_object
from embodyflow.agents.endpoint.session import Session
from embodyflow.process.ports import listen_on

MODEL_NAME = "policy"
"""Name of the served model; requests may give any."""

KEEP_ALIVE_SECONDS = 3600
"""Time after which an unused connection is closed; a tool may take long between two turns."""


class EpisodeServer:
    """Serves the open episodes of one event loop; it runs while there are any."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._running: _Running | None = None
        routes = [
            Route("/v1/models", self._models),
            Route("/v1/models/{name}", self._model),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/v1/responses", self._responses, methods=["POST"]),
        ]
        handlers = {ApiError: _refused, HTTPException: _unknown_path}
        self._app = Starlette(routes=routes, exception_handlers=handlers)  # type: ignore[arg-type]

    @contextlib.asynccontextmanager
    async def serve(self, session: Session) -> AsyncIterator[ClientSettings]:
        """Serve an episode within the block; its key is valid no longer."""
        key = secrets.token_urlsafe(32)
        if self._running is None:
            self._running = _Running.start(self._app)
        self._sessions[key] = session
        try:
            yield ClientSettings(self._running.base_url, key)
        finally:
            del self._sessions[key]
            if not self._sessions:
                running, self._running = self._running, None
                await running.stop()

    async def _models(self, request: Request) -> Response:
        self._session_of(request)
        return JSONResponse({"object": "list", "data": [_card(MODEL_NAME)]})

    async def _model(self, request: Request) -> Response:
        self._session_of(request)
        return JSONResponse(_card(request.path_params["name"]))

    async def _chat(self, request: Request) -> Response:
        session = self._session_of(request)
        with _refusals_of(session):
            body, asked = read_chat(await _json_of(request), session.temperature)
            turn = await session.answer(asked, is_retry=_is_retry(request))
        if not body.stream:
            return JSONResponse(chat_completion(body, turn))
        chunks = (f"data: {_dump(chunk)}\n\n" for chunk in chat_chunks(body, turn))
        return _event_stream([*chunks, "data: [DONE]\n\n"])

    async def _responses(self, request: Request) -> Response:
        session = self._session_of(request)
        with _refusals_of(session):
            body, asked = read_response_request(await _json_of(request), session.temperature, session.history)
            turn = await session.answer(asked, is_retry=_is_retry(request))
        before = asked.messages[1:] if body.instructions else asked.messages  # instructions hold for one response
        session.remember(response_id(turn), (*before, turn.message()))
        if not body.stream:
            return JSONResponse(response_object(body, turn))
        events = response_events(body, turn)
        return _event_stream([f"event: {event['type']}\ndata: {_dump(event)}\n\n" for event in events])

    def _session_of(self, request: Request) -> Session:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        session = self._sessions.get(key.strip()) if scheme.lower() == "bearer" else None
        if session is None:
            raise ApiError(
                "the API key is not that of an open episode; send OPENAI_API_KEY as a bearer token",
                401,
                code="invalid_api_key",
            )
        return session


class _Server(uvicorn.Server):
    """A server that leaves signals to the worker."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass
class _Running:
    """A server with the task that runs it."""

    base_url: str
    server: _Server
    task: "asyncio.Task[None]"

    @classmethod
    def start(cls, app: Starlette) -> "_Running":
        """Start to serve at a free port; connections wait until the server accepts them."""
        listener = listen_on(0)
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
        )
        server = _Server(config)
        task = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]))
        return cls(f"http://127.0.0.1:{listener.getsockname()[1]}/v1", server, task)

    async def stop(self) -> None:
        """Stop, and close all connections."""
        self.server.should_exit = self.server.force_exit = True
        await self.task


@contextlib.contextmanager
def _refusals_of(session: Session) -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        session.refuse(error)
        raise


async def _json_of(request: Request) -> Any:
    try:
        return await request.json()
    except ValueError as error:
        raise ApiError("the body is not JSON") from error


def _is_retry(request: Request) -> bool:
    """Return True if the ``openai`` client repeats a request, as it does after a timeout."""
    return request.headers.get("x-stainless-retry-count", "0") != "0"


def _card(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "embodyflow"}


def _dump(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False)


def _event_stream(events: Iterable[str]) -> Response:
    async def stream() -> AsyncIterator[str]:
        for event in events:
            yield event

    return StreamingResponse(stream(), media_type="text/event-stream", headers={"cache-control": "no-cache"})


async def _refused(request: Request, error: ApiError) -> Response:
    return JSONResponse(error.body(), error.status)


async def _unknown_path(request: Request, error: HTTPException) -> Response:
    problem = ApiError(f"{request.method} {request.url.path}: {error.detail}", error.status_code, code="not_found")
    return JSONResponse(problem.body(), error.status_code)
