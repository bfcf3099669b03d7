"""Environments of verifiers: their process, and what becomes of its answers. A stand-in takes the package's place."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import psutil
import pytest
from episode_clients import ROW, KnownModel, context_of, decode, engine_of
from vf_stand_in import stand_in
from waiting import eventually

from embodyflow.agents.chat.call_journal import ChangedCallError
from embodyflow.agents.endpoint.api_error import RequestError
from embodyflow.agents.episode import Episode, EpisodeContext
from embodyflow.agents.verifiers.environment_host import EnvironmentLostError
from embodyflow.agents.verifiers.verifiers_workflow import (
    EnvironmentFailedError,
    EnvironmentFaultError,
    VerifiersWorkflow,
)
from embodyflow.config.agents.agent import AgentConfig
from embodyflow.errors import ConfigError
from embodyflow.prompts.prompts import Prompt

PLAY = {"do": "play"}
WORKER = """
    import asyncio, os
    from embodyflow.agents.verifiers.environment_host import EnvironmentHost
    from embodyflow.prompts.verifiers.verifiers_config import VerifiersConfig

    async def run():
        host = EnvironmentHost(VerifiersConfig(taskset="any", python={python!r}), 3)
        process = await host.process()
        print(process._process.pid, flush=True)
        await asyncio.sleep(60)

    asyncio.run(run())
"""


def task(**values: Any) -> Prompt:
    return Prompt(0, None, ROW.messages, "408", "any", {"task": {**PLAY, **values}})


def answer(**rewards: float | None) -> dict[str, Any]:
    return {"rewards": rewards, "metrics": {"letters": 3.0}, "is_truncated": False}


def section(tmp_path: Path, before: str = "", **values: Any) -> dict[str, Any]:
    return {"taskset": "any", "python": stand_in(tmp_path, PLAY, before=before), **values}


def context(tmp_path: Path, before: str = "", **values: Any) -> EpisodeContext:
    return context_of(verifiers=section(tmp_path, before, **values))


async def run(workflow: VerifiersWorkflow, row: Prompt, model: KnownModel, context: EpisodeContext) -> Episode:
    return await workflow.run(engine_of(model), row, context)


def play(tmp_path: Path, row: Prompt, model: KnownModel | None = None, **values: Any) -> Episode:
    """Play one episode with a process of its own."""
    episode_context = context(tmp_path, **values)
    workflow = VerifiersWorkflow(episode_context.config)
    try:
        return asyncio.run(run(workflow, row, model or KnownModel("408"), episode_context))
    finally:
        workflow.close()


def test_the_environment_gives_rewards_and_metrics_and_the_tokens_are_the_servers(tmp_path: Path) -> None:
    model = KnownModel("408")
    episode_context = context(tmp_path, success_above=0.7)
    workflow = VerifiersWorkflow(episode_context.config)

    good = asyncio.run(run(workflow, task(answer=answer(right=0.75, short=0.25)), model, episode_context))
    poor = asyncio.run(run(workflow, task(answer=answer(right=0.5)), KnownModel("7"), context_of()))

    assert (good.reward, good.success, good.finished) == (1.0, True, True)
    assert (poor.reward, poor.success) == (0.5, False)
    assert [decode(each.tokens) for each in good.transcript.segments if each.origin == 1] == ["408<end>"]
    assert {name: (each.value, each.weight) for name, each in workflow.metrics().items()} == {
        "rollout/verifiers/letters": (3.0, 2.0),
        "rollout/verifiers/right": (0.625, 2.0),
        "rollout/verifiers/short": (0.25, 1.0),
    }
    assert workflow.metrics() == {}
    workflow.close()


def test_a_limit_that_the_environment_keeps_cuts_the_episode_and_its_reward_counts(tmp_path: Path) -> None:
    episode = play(tmp_path, task(answer={**answer(right=0.25), "is_truncated": True}))
    assert (episode.reward, episode.finished) == (0.25, False)


def test_episodes_of_several_event_loops_share_a_process_that_ends_with_the_workflow(tmp_path: Path) -> None:
    episode_context = context(tmp_path)
    workflow = VerifiersWorkflow(episode_context.config)

    async def both() -> list[float | None]:
        episodes = [run(workflow, task(), KnownModel("1"), context_of()) for _ in range(2)]
        return [episode.reward for episode in await asyncio.gather(*episodes)]

    pids = {int(pid or 0) for pid in (*asyncio.run(both()), *asyncio.run(both()))}

    assert len(pids) == 1 and psutil.pid_exists(*pids)
    workflow.close()
    workflow.close()
    assert not psutil.pid_exists(*pids)


def test_a_process_that_ends_fails_its_episode_and_another_takes_its_place(tmp_path: Path) -> None:
    episode_context = context(tmp_path)
    workflow = VerifiersWorkflow(episode_context.config)
    row = task(do="die once", marker=str(tmp_path / "marker"))

    with pytest.raises(EnvironmentLostError, match="its process has ended: out of memory"):
        asyncio.run(run(workflow, row, KnownModel("1"), episode_context))
    assert asyncio.run(run(workflow, row, KnownModel("1"), context_of())).success
    workflow.close()


def test_an_episode_that_takes_too_long_is_cancelled_in_the_process(tmp_path: Path) -> None:
    episode_context = context(tmp_path, timeout=1.0)
    workflow = VerifiersWorkflow(episode_context.config)

    with pytest.raises(EnvironmentFailedError, match=r"longer than rollout.agent.verifiers.timeout=1 seconds"):
        asyncio.run(run(workflow, task(do="hang"), KnownModel("1"), episode_context))
    process = workflow._environment._process
    assert process is not None and eventually(lambda: "cancelled 0" in process._errors, 10)
    workflow.close()


def test_the_time_of_the_model_does_not_count(tmp_path: Path) -> None:
    model = KnownModel("1")
    model.wait = lambda: asyncio.sleep(2.5)
    assert play(tmp_path, task(), model, timeout=2.0).finished


@pytest.mark.parametrize(
    ("row", "error", "reason"),
    [
        (
            {"error": {"type": "SandboxError", "message": "no disk"}},
            EnvironmentFailedError,
            "any: SandboxError: no disk",
        ),
        ({"error": {"type": "TaskError", "message": "right: KeyError"}}, EnvironmentFaultError, "TaskError: right"),
        (answer(), EnvironmentFaultError, "gave no reward at all"),
        (answer(right=1.0, short=None), EnvironmentFaultError, "gave no reward short"),
        (answer(right=float("nan")), ValueError, "reward=nan: must be finite"),
    ],
)
def test_a_failure_is_never_a_reward(tmp_path: Path, row: dict[str, Any], error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        play(tmp_path, task(answer=row))


def test_a_request_that_cannot_be_trained_on_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"after a refused request: temperature=7.0"):
        play(tmp_path, task(do="ask for another temperature"))


def test_an_environment_that_does_not_repeat_is_drawn_again(tmp_path: Path) -> None:
    model = KnownModel("1")

    async def other_tokens() -> None:
        raise ChangedCallError("episode 5, draw 0: turn 0 differs")

    model.wait = other_tokens
    with pytest.raises(EnvironmentFailedError, match="does not repeat what it did before: episode 5"):
        play(tmp_path, task(), model)


@pytest.mark.parametrize(
    ("before", "error", "reason"),
    [
        (
            'print(\'{"error": "it has no tasks"}\'); sys.exit()',
            ConfigError,
            "^rollout.agent.verifiers=any: it has no tasks$",
        ),
        ("sys.exit('no memory')", EnvironmentLostError, "its process has ended: no memory"),
        ("import time; time.sleep(60)", EnvironmentLostError, "not loaded within start_timeout=1 seconds"),
    ],
)
def test_an_environment_that_cannot_be_loaded(tmp_path: Path, before: str, error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        play(tmp_path, task(), before=before, start_timeout=1.0 if "sleep" in before else 60)


def test_the_process_ends_with_the_worker(tmp_path: Path) -> None:
    """The worker is killed; it cannot clean up."""
    script = tmp_path / "worker.py"
    script.write_text(textwrap.dedent(WORKER).format(python=stand_in(tmp_path, PLAY)))
    worker = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert worker.stdout is not None
    guardian = psutil.Process(int(worker.stdout.readline()))
    processes = [guardian, *guardian.children(recursive=True)]
    assert len(processes) == 2

    worker.send_signal(signal.SIGKILL)
    worker.communicate()

    assert eventually(lambda: not any(each.is_running() for each in processes), 10)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            {"workflow": "embodyflow.agents.verifiers.verifiers_workflow:VerifiersWorkflow"},
            "rollout.agent.verifiers: embodyflow.agents.verifiers.verifiers_workflow:VerifiersWorkflow needs one",
        ),
        (
            {"verifiers": {"taskset": "any", "python": "no-such"}},
            "rollout.agent.verifiers.python: no-such is no command",
        ),
        (
            {"verifiers": "any", "tools": ["embodyflow.agents.calculator:calculate"]},
            "rollout.agent.tools: an environment brings its tools",
        ),
    ],
)
def test_mistakes_are_found_before_anything_starts(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        VerifiersWorkflow(AgentConfig(max_turns=1, **config))


def test_settings_do_not_name_a_second_taskset() -> None:
    with pytest.raises(ValueError, match="without id, which is the key taskset"):
        AgentConfig(max_turns=1, verifiers={"taskset": "any", "settings": {"taskset": {"id": "other"}}})


def test_rows_of_other_data_are_refused(tmp_path: Path) -> None:
    workflow = VerifiersWorkflow(context(tmp_path).config)
    with pytest.raises(ConfigError, match=r"^data: rollout.agent.verifiers=any needs data=verifiers$"):
        workflow.check(ROW)
    workflow.check(task())
