"""The workflow of environments of verifiers: the environment plays each episode and judges it.

It runs in a process of its own and reaches the model as an OpenAI-compatible server, with a key for each episode. So
the tokens of the server are the record, and the process has other packages than this one.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from embodyflow.agents.chat.call_journal import ChangedCallError
from embodyflow.agents.endpoint.api_error import RequestError
from embodyflow.agents.endpoint.client_settings import ClientSettings
from embodyflow.agents.endpoint.server import EpisodeServer
from embodyflow.agents.endpoint.session import Session
from embodyflow.agents.endpoint.watch import Watch
from embodyflow.agents.episode import Episode, EpisodeContext
from embodyflow.agents.verifiers.environment_host import Answer, EnvironmentHost, EnvironmentProcess
from embodyflow.agents.workflow import ChatEngine
from embodyflow.config.agents.agent import AgentConfig
from embodyflow.data.metrics import Metric, mean
from embodyflow.errors import ConfigError, InfrastructureError
from embodyflow.prompts.prompts import Prompt

INFRASTRUCTURE = (
    "HarnessError",
    "InterceptionError",
    "ProviderError",
    "SandboxError",
    "TimeoutError",
    "ToolsetError",
    "TunnelError",
)
"""Names of verifiers' errors, and of time limits, after which another attempt may succeed."""


class EnvironmentFailedError(InfrastructureError):
    """An episode of an environment failed or took too long, so it is drawn again; the message says how."""


class EnvironmentFaultError(RuntimeError):
    """The code of an environment raised, or gave no reward."""


class VerifiersWorkflow:
    """Implements :class:`~embodyflow.agents.workflow.RolloutWorkflow`.

    Args:
        config: Section ``rollout.agent``.

    Raises:
        ConfigError: There is no environment or no such Python, or the section has tools, which are the environment's.
    """

    def __init__(self, config: AgentConfig) -> None:
        if config.verifiers is None:
            raise ConfigError(f"rollout.agent.verifiers: {config.workflow} needs one; allowed is the id of a taskset")
        if config.tools:
            raise ConfigError("rollout.agent.tools: an environment brings its tools; set rollout.agent.tools=[]")
        self._config = config.verifiers
        self._environment = EnvironmentHost(config.verifiers, config.max_turns)
        self._server: tuple[asyncio.AbstractEventLoop, EpisodeServer] | None = None
        self._measured: dict[str, list[float]] = defaultdict(list)

    def check(self, row: Prompt) -> None:
        """Check that the rows are tasks of the environment.

        Raises:
            ConfigError: They are other data.
        """
        if "task" not in row.row:
            raise ConfigError(f"data: rollout.agent.verifiers={self._config.taskset} needs data=verifiers")

    async def run(self, engine: ChatEngine, row: Prompt, context: EpisodeContext) -> Episode:
        """Play one episode.

        Raises:
            EnvironmentFailedError: The episode failed, took too long, or does not repeat what it did before.
            EnvironmentLostError: The process has ended.
            EnvironmentFaultError: The environment's code raised, or gave no reward.
            RequestError: The environment asked for something that an episode cannot have.
        """
        process = await self._environment.process()
        watch = Watch(self._config.timeout)
        session = Session(engine, row, context, watch.on_turn)
        async with self._server_here().serve(session) as settings, session:
            answer = await self._play(process, row.row["task"], settings, session, watch)
        if "error" in answer:
            raise self._failure(answer["error"], session)
        return self._episode(answer, session, context)

    def metrics(self) -> dict[str, Metric]:
        """Return the means of rewards and metrics by name since the last call."""
        measured, self._measured = self._measured, defaultdict(list)
        return {name: mean(sum(values) / len(values), len(values)) for name, values in measured.items()}

    def close(self) -> None:
        """End the process of the environment."""
        self._environment.close()

    async def _play(
        self, process: EnvironmentProcess, task: Any, settings: ClientSettings, session: Session, watch: Watch
    ) -> Answer:
        """Play an episode; return its answer, unless the session fails or its time is over before."""
        playing = asyncio.ensure_future(process.play(task, settings.base_url, settings.api_key))
        watch.start()
        ends: list[asyncio.Future[Any]] = [playing, session.failed, watch.expired]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if session.failed.done():
                error = session.failed.result()
                if isinstance(error, ChangedCallError):
                    raise EnvironmentFailedError(f"the environment does not repeat what it did before: {error}")
                raise error
            if not playing.done():
                raise EnvironmentFailedError(
                    f"the episode took longer than rollout.agent.verifiers.timeout={self._config.timeout:g} seconds "
                    "without the model"
                )
            return playing.result()
        finally:
            watch.end()
            playing.cancel()

    def _failure(self, error: Mapping[str, str], session: Session) -> Exception:
        reason = f"rollout.agent.verifiers={self._config.taskset}: {error['type']}: {error['message']}"
        if error["type"] not in INFRASTRUCTURE:
            return EnvironmentFaultError(reason)
        if session.refusal is not None:
            return RequestError(f"the environment failed after a refused request: {session.refusal}")
        if session.is_cut:
            return RequestError(
                f"{reason}; its harness does not end at a limit of the run, so there is no reward. Raise "
                "rollout.agent.max_turns or rollout.max_response_tokens"
            )
        return EnvironmentFailedError(reason)

    def _episode(self, answer: Answer, session: Session, context: EpisodeContext) -> Episode:
        """Return the episode with the sum of the weighted rewards, as verifiers has it."""
        rewards: Mapping[str, float | None] = answer["rewards"]
        given = [value for value in rewards.values() if value is not None]
        if not rewards or len(given) < len(rewards):
            missing = ", ".join(name for name, value in rewards.items() if value is None) or "at all"
            raise EnvironmentFaultError(f"rollout.agent.verifiers={self._config.taskset}: gave no reward {missing}")
        session.is_cut = session.is_cut or answer["is_truncated"]
        reward = sum(given)
        episode = session.episode(reward, reward > self._config.success_above)
        for name, value in {**answer["metrics"], **rewards}.items():
            by_split = {"train": f"rollout/verifiers/{name}", "eval": f"eval/verifiers/{name}"}
            if value is not None and context.split in by_split:
                self._measured[by_split[context.split]].append(value)
        return episode

    def _server_here(self) -> EpisodeServer:
        """Return the server of this event loop's episodes."""
        loop = asyncio.get_running_loop()
        if self._server is None or self._server[0] is not loop:
            self._server = loop, EpisodeServer()
        return self._server[1]
