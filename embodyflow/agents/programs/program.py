"""The workflow of programs: each episode is played by a process that uses an OpenAI client.

The program knows nothing of the run. It finds the server's address and its key in ``OPENAI_BASE_URL`` and
``OPENAI_API_KEY``, and the row as JSON on stdin: ``prompt_id``, ``text``, ``messages``, ``ground_truth``,
``data_source``, ``row`` with further columns, and ``seed`` for draws of its own.
"""

import asyncio
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from embodyflow.agents.chat.call_journal import ChangedCallError
from embodyflow.agents.chat.transcript import Transcript
from embodyflow.agents.endpoint.api_error import RequestError
from embodyflow.agents.endpoint.server import EpisodeServer
from embodyflow.agents.endpoint.session import Session
from embodyflow.agents.endpoint.watch import Watch
from embodyflow.agents.episode import Counts, Episode, EpisodeContext
from embodyflow.agents.programs.process import Ended, environment, running, search_path
from embodyflow.agents.programs.repeated_model import RepeatedModel
from embodyflow.agents.programs.reward import read_reward
from embodyflow.agents.workflow import ChatEngine
from embodyflow.config.agents.agent import AgentConfig, ProgramConfig
from embodyflow.errors import ConfigError, InfrastructureError
from embodyflow.prompts.prompts import Prompt
from embodyflow.references import resolve

log = logging.getLogger(__name__)

FUNCTION_MODULE = "embodyflow.agents.programs.function"


class ProgramFailedError(InfrastructureError):
    """A program failed or took too long in all attempts, so the episode is drawn again; the message says how."""


class ProgramChangedError(ProgramFailedError):
    """A program does not repeat what it did before, so the episode is drawn again."""


class Program:
    """Implements :class:`~embodyflow.agents.workflow.RolloutWorkflow`.

    Args:
        config: Section ``rollout.agent``.

    Raises:
        ConfigError: There is no program, its command cannot be found, or the section has tools, which are the
            program's own.
    """

    def __init__(self, config: AgentConfig) -> None:
        if config.program is None:
            raise ConfigError(
                f"rollout.agent.program: {config.workflow} needs one; allowed are a command such as "
                "[python, my_agent.py] and a function module:function"
            )
        if config.tools:
            raise ConfigError("rollout.agent.tools: a program brings its own tools; set rollout.agent.tools=[]")
        self._program = config.program
        self._command = _command(config.program)
        is_function = config.program.function is not None
        self._variables = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)} if is_function else {}
        self._host: _Host | None = None

    async def run(self, engine: ChatEngine, row: Prompt, context: EpisodeContext) -> Episode:
        """Play one episode: run the program to its end.

        A program that fails restarts and gets the turns that the model has written.

        Raises:
            ProgramFailedError: The program failed or took too long in all attempts.
            ProgramChangedError: It does not repeat what it did before.
            RequestError: It asked for something that an episode cannot have.
            PrintedRewardError: It printed something other than a reward.
        """
        model, attempt = RepeatedModel(engine.model), 0
        while True:
            model.begin_again()
            context.counts = Counts()
            try:
                return await self._run_once(replace(engine, model=model, transcript=Transcript()), row, context)
            except ProgramFailedError as error:
                if isinstance(error, ProgramChangedError) or attempt == self._program.retries:
                    raise
                context.faults.retries += 1
                log.warning("episode %d: attempt %d: %s; it restarts", context.uid, attempt + 1, error)
            await asyncio.sleep(self._program.wait_after(attempt))
            attempt += 1

    async def _run_once(self, engine: ChatEngine, row: Prompt, context: EpisodeContext) -> Episode:
        """Run the program to its end once."""
        host = self._host_here()
        watch = Watch(self._program.timeout, _once(host.starting.release))
        session = Session(engine, row, context, watch.on_turn)
        async with host.server.serve(session) as settings, session:
            env = environment(settings.base_url, settings.api_key) | self._variables
            await host.starting.acquire()
            try:
                ended = await self._play(env, _row_as_json(row, context), session, watch)
            finally:
                watch.end()
        return self._episode(ended, session)

    async def _play(self, env: Mapping[str, str], row: bytes, session: Session, watch: Watch) -> Ended:
        """Run the program; return its end, unless the session fails or its time is over before."""
        async with running(self._command, env, row) as ended:
            watch.start()
            ends: list[asyncio.Future[Any]] = [ended, session.failed, watch.expired]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if session.failed.done():
                error = session.failed.result()
                if isinstance(error, ChangedCallError):
                    raise ProgramChangedError(f"the program does not repeat what it did before: {error}") from error
                raise error
            if not ended.done():
                raise ProgramFailedError(
                    f"the program took longer than rollout.agent.program.timeout={self._program.timeout:g} seconds "
                    "without the model"
                )
            return ended.result()

    def _episode(self, ended: Ended, session: Session) -> Episode:
        if ended.code != 0:
            if session.is_cut:  # a limit of the run ended the episode, and the program with it
                return session.episode(None, None)
            if session.refusal is not None:
                raise RequestError(f"the program failed after a refused request: {session.refusal}")
            raise ProgramFailedError(f"the program failed with {ended.reason}")
        if self._program.reward == "function":
            return session.episode(None, None)
        return session.episode(*read_reward(ended.output))

    def _host_here(self) -> "_Host":
        """Return the shared parts of this event loop's episodes."""
        loop = asyncio.get_running_loop()
        if self._host is None or self._host.loop is not loop:
            self._host = _Host(loop, EpisodeServer(), asyncio.Semaphore(os.cpu_count() or 1))
        return self._host


@dataclass(frozen=True)
class _Host:
    """Shared parts of the episodes that are played side by side.

    Attributes:
        loop: Event loop of the episodes.
        server: Server of the model.
        starting: Limit of the programs that start at a time. All episodes of a call begin at once, and importing a
            client takes a second of a core.
    """

    loop: asyncio.AbstractEventLoop
    server: EpisodeServer
    starting: asyncio.Semaphore


def _once(function: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls another one the first time only."""
    calls = iter([function])
    return lambda: next(calls, lambda: None)()


def _row_as_json(row: Prompt, context: EpisodeContext) -> bytes:
    """Return the JSON that the program reads; dates and other values that JSON lacks are text."""
    values = {
        "prompt_id": row.prompt_id,
        "text": row.text,
        "messages": row.messages,
        "ground_truth": row.ground_truth,
        "data_source": row.data_source,
        "row": dict(row.row),
        "seed": context.seed,
    }
    return json.dumps(values, default=str).encode()


def _command(program: ProgramConfig) -> tuple[str, ...]:
    """Return the command of a program, whose first word is the path of a file.

    Raises:
        ConfigError: The command, its script or the function cannot be found.
    """
    if program.function is not None:
        try:
            found = resolve(program.function)
        except ImportError as error:
            raise ConfigError(f"rollout.agent.program={program.function}: {error}") from error
        if not callable(found):
            raise ConfigError(f"rollout.agent.program={program.function}: must be a function run(client, row)")
        return sys.executable, "-m", FUNCTION_MODULE, program.function
    name, *arguments = program.command
    path = shutil.which(name, path=search_path())
    if path is None:
        raise ConfigError(f"rollout.agent.program.command: {name} is no command that this machine has")
    script = arguments[0] if arguments and arguments[0].endswith(".py") else None
    if script is not None and not os.path.isfile(script):
        raise ConfigError(f"rollout.agent.program.command: {os.path.abspath(script)} does not exist")
    return path, *arguments
