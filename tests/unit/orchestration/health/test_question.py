"""A paused run waits for its answer, in the run's folder or on the server, also while the server is away."""

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prefect.states import Cancelling, Running

from embodyflow.errors import HealthError
from embodyflow.orchestration.health import question
from embodyflow.orchestration.health.question import GoOn, PausedFlowRun, _wait
from embodyflow.record.answers import AnswerFile


class Server:
    """Stands for a Prefect server: it has the state of one flow run, and the input that a person gave."""

    def __init__(self) -> None:
        self.state: Any = Running()
        self.answer: str | None = None
        self.is_away = False
        self.forms = 0

    async def read_flow_run(self, _: object) -> Any:
        if self.is_away:
            raise httpx.ConnectError("no server")
        return SimpleNamespace(state=self.state)

    async def resume_flow_run(self, _: object, run_input: dict[str, str]) -> None:
        await self.read_flow_run(None)
        self.state, self.answer = Running(), run_input["answer"]

    async def propose(self, _: object, state: Any, *, flow_run_id: object) -> Any:
        self.state = state
        return state

    async def save(self, *_: object) -> None:
        self.forms += 1

    async def load(self, *_: object) -> GoOn:
        return GoOn.model_validate({"answer": self.answer})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    fake = Server()
    monkeypatch.setattr(question, "runtime", SimpleNamespace(flow_run=SimpleNamespace(id=str(uuid4()))))
    monkeypatch.setattr(question, "propose_state", fake.propose)
    monkeypatch.setattr(question, "get_run_logger", lambda: logging.getLogger("run"))
    monkeypatch.setattr(question, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(GoOn, "asave", fake.save)
    monkeypatch.setattr(GoOn, "aload", fake.load)
    return fake


def paused(server: Any) -> PausedFlowRun:
    return PausedFlowRun(server, GoOn, "the norm is high", 60.0)


def test_the_flow_run_pauses_and_gives_the_answer_of_its_form(server: Server) -> None:
    async def whole() -> list[str | None]:
        run = paused(server)
        found = [await run.answer(), await run.answer()]
        assert server.state.is_paused() and server.state.state_details.run_input_keyset
        await server.resume_flow_run(None, {"answer": "go_on"})
        return [*found, await run.answer()]

    assert asyncio.run(whole()) == [None, None, "go_on"]
    assert server.forms == 1


def test_a_server_that_is_away_delays_the_pause(server: Server) -> None:
    async def whole() -> None:
        run = paused(server)
        server.is_away = True
        assert await run.answer() is None and not server.state.is_paused()
        server.is_away = False
        assert await run.answer() is None and server.state.is_paused()
        server.is_away = True
        await run.resume("cancel")  # logs a warning
        assert await run.answer() is None

    asyncio.run(whole())


def test_a_flow_run_that_is_cancelled_while_it_waits_is_cancelled(server: Server) -> None:
    async def whole() -> str | None:
        run = paused(server)
        await run.answer()
        server.state = Cancelling()
        return await run.answer()

    assert asyncio.run(whole()) == "cancel"


def test_a_flow_run_that_cannot_pause_ends(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **__: object) -> Any:
        return Cancelling()

    monkeypatch.setattr(question, "propose_state", refuse)
    with pytest.raises(HealthError, match="cannot pause in the state Cancelling"):
        asyncio.run(paused(server).answer())


def test_the_answer_in_the_folder_resumes_the_flow_run(server: Server, tmp_path: Path) -> None:
    file = AnswerFile(tmp_path)
    file.ask("3/spike", "high", ("go_on", "cancel"))

    async def whole() -> str | None:
        run = paused(server)
        await run.answer()
        file.answer("cancel")
        return await _wait(file, "3/spike", run, 60.0)

    assert asyncio.run(whole()) == "cancel" and server.answer == "cancel" and server.state.is_running()


def test_a_question_without_an_answer_runs_out_of_time(server: Server, tmp_path: Path) -> None:
    assert asyncio.run(_wait(AnswerFile(tmp_path), "3/spike", paused(server), 0.05)) is None
