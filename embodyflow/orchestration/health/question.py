"""A paused run, which asks a person how to go on.

The flow run is paused on the Prefect server, and the UI shows a form with the possible answers. ``embodyflow answer``
gives one without the UI. The question is in the run's folder and in the ledger, so a run whose process is killed while
it waits asks again once it is resumed.
"""

import asyncio
import time
from typing import Any, Literal
from uuid import UUID, uuid4

import httpx
from prefect import get_client, runtime
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import State
from prefect.exceptions import PrefectException
from prefect.input import RunInput, keyset_from_paused_state
from prefect.input.run_input import Keyset
from prefect.logging import get_run_logger
from prefect.states import Paused
from prefect.utilities.engine import propose_state

from embodyflow.config.health_checks import rolling_back
from embodyflow.errors import HealthError
from embodyflow.health.examination import Alarm
from embodyflow.orchestration.run.iterations.nodes import Run
from embodyflow.orchestration.server.availability import is_unavailable
from embodyflow.record.answers import AnswerFile

POLL_SECONDS = 2.0
"""Interval at which the server and the run's folder are asked for the answer."""


class GoOn(RunInput):
    """The form of a question whose run cannot roll back."""

    answer: Literal["go_on", "cancel"] = "go_on"


class GoOnOrBack(RunInput):
    """The form of a question whose run can roll back."""

    answer: Literal["go_on", "roll_back", "cancel"] = "go_on"


Form = type[GoOn] | type[GoOnOrBack]
_REQUEST_ERRORS = (httpx.HTTPError, PrefectException)


class PausedFlowRun:
    """The current flow run, paused on the server until a person answers.

    A server that does not answer delays the pause: the next :meth:`answer` tries again.

    Args:
        client: Client of the server.
        form: Form that the UI shows.
        text: Text above the form, in Markdown.
        seconds: Seconds until the server fails the flow run.
    """

    def __init__(self, client: PrefectClient, form: Form, text: str, seconds: float) -> None:
        self._client, self._text, self._seconds = client, text, seconds
        self._form: Form = form
        self._flow_run_id = UUID(runtime.flow_run.id)
        self._keys: Keyset | None = None

    async def answer(self) -> str | None:
        """Pause the flow run unless it is; return the answer, or ``None`` before it."""
        try:
            return await self._answer()
        except _REQUEST_ERRORS as error:
            if not is_unavailable(error):
                raise
            return None

    async def resume(self, answer: str) -> None:
        """Let the flow run go on with an answer that was given elsewhere; a server that is away is not told."""
        try:
            if self._keys is not None:
                await self._client.resume_flow_run(self._flow_run_id, run_input={"answer": answer})
        except _REQUEST_ERRORS as error:
            get_run_logger().warning("the Prefect server still shows the run as paused: %s", error or repr(error))

    async def _answer(self) -> str | None:
        if self._keys is None:
            await self._pause()
            return None
        state = (await self._client.read_flow_run(self._flow_run_id)).state
        if state is None or state.is_paused():
            return None
        if not state.is_running():  # cancelled in the UI, or failed by its time limit
            return "cancel"
        return (await self._form.aload(self._keys, self._flow_run_id)).answer

    async def _pause(self) -> None:
        state = (await self._client.read_flow_run(self._flow_run_id)).state
        if state is None or not state.is_paused():  # it is paused if the answer to an earlier request was lost
            state = await propose_state(self._client, self._paused(), flow_run_id=self._flow_run_id)
        if not state.is_paused():
            raise HealthError(f"the flow run cannot pause in the state {state.name}")
        keys = keyset_from_paused_state(state)
        await self._form.with_initial_data(description=self._text).asave(keys, self._flow_run_id)
        self._keys = keys

    def _paused(self) -> State[Any]:
        """Return a state whose form has keys of its own, so that an earlier question's answer does not count."""
        seconds = int(self._seconds)
        state: State[Any] = Paused(timeout_seconds=seconds, reschedule=False, pause_key=uuid4().hex)
        keys = keyset_from_paused_state(state)
        state.state_details.run_input_keyset = {str(name): key for name, key in keys.items()}
        return state


async def ask(run: Run, alarm: Alarm) -> str:
    """Pause the run until a person answers; return the answer.

    Raises:
        HealthError: Nobody answered within ``health.pause_timeout``.
    """
    can_roll_back = alarm.detector in {key.rpartition(".")[2] for key, _ in rolling_back(run.config.health)}
    form: Form = GoOnOrBack if can_roll_back else GoOn
    allowed = ("go_on", "roll_back", "cancel") if can_roll_back else ("go_on", "cancel")
    file, key = AnswerFile(run.folder.path), f"{alarm.iteration}/{alarm.detector}"
    file.ask(key, str(alarm), allowed)
    run.folder.write_status("paused", alarm.iteration, run.config.iterations)
    get_run_logger().warning(
        "the run is paused; answer in the Prefect UI or by: embodyflow answer %s %s", run.folder.path, "|".join(allowed)
    )
    async with get_client() as client:
        paused = PausedFlowRun(client, form, str(alarm), run.config.health.pause_timeout)
        answer = await _wait(file, key, paused, run.config.health.pause_timeout)
    if answer is None:
        raise HealthError(f"{alarm}; nobody answered within health.pause_timeout={run.config.health.pause_timeout:g}")
    file.close()
    get_run_logger().warning("the answer is %s", answer)
    run.folder.write_status("train", alarm.iteration, run.config.iterations)
    return answer


async def _wait(file: AnswerFile, key: str, paused: PausedFlowRun, seconds: float) -> str | None:
    """Return the first answer, in the run's folder or on the server; ``None`` if the time is up."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (answer := file.read(key)) is not None:
            await paused.resume(answer)
            return answer
        if (answer := await paused.answer()) is not None:
            return answer
        await asyncio.sleep(min(POLL_SECONDS, seconds))
    return None
