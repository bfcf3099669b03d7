"""The episode of a program, as the requests that it makes."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from embodyflow.agents.chat.chat_format import Message
from embodyflow.agents.endpoint.api_error import ApiError, RequestError
from embodyflow.agents.endpoint.thread import Thread
from embodyflow.agents.endpoint.turns import Turn, TurnRequest
from embodyflow.agents.episode import Episode, EpisodeContext
from embodyflow.agents.workflow import ChatEngine
from embodyflow.prompts.prompts import Prompt, PromptTooLongError

LIMIT_CODES = ("context_length_exceeded", "max_turns")
"""Codes of refusals by a limit of the run. They cut the episode."""


@dataclass
class _Asked:
    """The newest request and the turn that answers it."""

    request: TurnRequest
    turn: asyncio.Task[Turn]


class Session:
    """Answers the requests of one episode's program, one at a time.

    A request that continues no conversation begins another, such as that of another agent of the program, or of one
    that shortens its chat or edits it. All conversations are contexts of one episode.

    Args:
        engine: Model of the episode.
        row: Row of the data.
        context: Context of the episode.
        on_turn: Called with True when the model begins a turn, and with False when it ends.

    Attributes:
        temperature: Temperature of the run's training episodes.
        is_cut: True if a limit of the run refused the newest turn.
        refusal: Message of the newest request if it was refused for its parameters, or ``None``.
        failed: Gets the exception that ends the episode whatever the program does then.
    """

    def __init__(
        self, engine: ChatEngine, row: Prompt, context: EpisodeContext, on_turn: Callable[[bool], None]
    ) -> None:
        self._engine, self._row, self._context, self._on_turn = engine, row, context, on_turn
        self._threads: list[Thread] = []
        self._newest: Thread | None = None
        self._asked: _Asked | None = None
        self._responses: dict[str, Sequence[Message]] = {}
        self.temperature = engine.temperature
        self.is_cut = False
        self.refusal: str | None = None
        self.failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    async def answer(self, request: TurnRequest, *, is_retry: bool) -> Turn:
        """Return the model's turn.

        Args:
            request: Request of the program.
            is_retry: True if the client sends a request again because it got no answer. It gets the same turn.

        Raises:
            ApiError: The episode cannot have this turn.
        """
        if self.failed.done():
            raise ApiError("the episode has failed", code="episode_failed")
        if is_retry and self._asked is not None and self._asked.request == request:
            return await self._turn_of(self._asked)
        if self._asked is not None and not self._asked.turn.done():
            raise self._fail(
                "it asks for two turns at a time, whose order would be left to chance; a program must wait for a turn "
                "before it asks for the next"
            )
        self._asked = _Asked(request, asyncio.get_running_loop().create_task(self._turn(request)))
        return await self._turn_of(self._asked)

    def remember(self, response: str, messages: Sequence[Message]) -> None:
        """Keep the messages up to a response and with it, by its id."""
        self._responses[response] = messages

    def history(self, response: str) -> Sequence[Message]:
        """Return the messages that :meth:`remember` keeps.

        Raises:
            ApiError: The episode has no such response.
        """
        if response not in self._responses:
            message = f"previous_response_id={response}: the episode has no such response"
            raise ApiError(message, param="previous_response_id", code="previous_response_not_found")
        return self._responses[response]

    def refuse(self, error: ApiError) -> None:
        """Remember a refusal; it explains the failure of a program that does not survive it."""
        if error.code in LIMIT_CODES:
            self.is_cut = True
        else:
            self.refusal = error.message

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for a turn that the model still writes after its program has ended; cancel it with the rollout."""
        if self._asked is None:
            return
        if isinstance(error, asyncio.CancelledError):
            self._asked.turn.cancel()
        await asyncio.gather(self._asked.turn, return_exceptions=True)

    def episode(self, reward: float | None, success: bool | None) -> Episode:
        """Return the episode as it is now.

        Args:
            reward: Reward of the program; ``None`` leaves it to the reward function.
            success: Verdict of the program; ``None`` with a reward means that the reward is positive.

        Raises:
            RequestError: The model has written nothing.
        """
        if self._newest is None:
            raise RequestError("the program has asked the model for no turn; it must use OPENAI_BASE_URL")
        return self._newest.episode(self.is_cut, reward, success)

    async def _turn_of(self, asked: _Asked) -> Turn:
        """Wait for a turn, which goes on if the client does not."""
        try:
            return await asyncio.shield(asked.turn)
        except asyncio.CancelledError:
            if asked.turn.cancelled():
                raise ApiError("the episode has ended", code="episode_failed") from None
            raise

    async def _turn(self, request: TurnRequest) -> Turn:
        self._on_turn(True)
        try:
            turn = await self._thread_of(request).turn(request, self._next_name())
            self.is_cut, self.refusal = False, None
            return turn
        except ApiError:
            raise
        except Exception as error:
            if not self.failed.done():
                self.failed.set_result(error)
            raise ApiError(f"the episode has failed: {error}", code="episode_failed") from error
        finally:
            self._on_turn(False)

    def _thread_of(self, request: TurnRequest) -> Thread:
        """Return the conversation that a request continues, or begin one."""
        if self._context.counts.turns == self._context.config.max_turns:
            raise ApiError(f"rollout.agent.max_turns={self._context.counts.turns}: no more turns", code="max_turns")
        continued = [thread for thread in self._threads if thread.is_continued_by(request)]
        if continued:
            self._newest = max(continued, key=lambda thread: thread.num_messages)
            return self._newest
        try:
            self._newest = Thread(self._engine, self._row, self._context, request)
        except PromptTooLongError as error:
            raise RequestError(str(error)) from error
        self._threads.append(self._newest)
        return self._newest

    def _next_name(self) -> str:
        return f"{self._context.uid}-{self._context.draw}-{self._context.counts.turns}"

    def _fail(self, reason: str) -> ApiError:
        """Fail the episode, and return the answer to the request that caused it."""
        if not self.failed.done():
            self.failed.set_result(RequestError(f"the program sent a request that cannot be trained on: {reason}"))
        return ApiError(reason, code="episode_failed")
