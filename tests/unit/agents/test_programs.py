"""Programs play episodes in processes of their own, which end with their episode and with the worker."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from episode_clients import ROW, KnownModel, context_of, decode, engine_of
from my_programs import SCRIPT

from embodyflow.agents.chat.call_journal import ChangedCallError
from embodyflow.agents.endpoint.api_error import RequestError
from embodyflow.agents.episode import Episode, EpisodeContext
from embodyflow.agents.programs.process import environment
from embodyflow.agents.programs.program import Program, ProgramChangedError, ProgramFailedError
from embodyflow.agents.programs.reward import PrintedRewardError, read_reward
from embodyflow.config.agents.agent import AgentConfig
from embodyflow.config.generation import RemoteConfig
from embodyflow.errors import ConfigError
from embodyflow.generation.http_client import HTTPClient
from embodyflow.process import guardian, variables

ASK = """
    import json, os, subprocess, sys, time, urllib.request
    row = json.load(sys.stdin)

    def ask(**body):
        headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
        address = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
        body = json.dumps({"messages": row["messages"], **body}).encode()
        return urllib.request.urlopen(urllib.request.Request(address, body, headers)).read()
"""
WORKER = """
    import asyncio
    from embodyflow.agents.programs.process import environment, running

    async def run():
        async with running({command}, environment("http://127.0.0.1:9/v1", "key"), b"{{}}") as ended:
            await ended

    asyncio.run(run())
"""


def play(program: Any, model: KnownModel, context: EpisodeContext | None = None, **config: Any) -> Episode:
    context = context or context_of(program=program, **config)

    async def run() -> Episode:
        return await Program(context.config).run(engine_of(model), ROW, context)

    return asyncio.run(run())


def script(folder: Path, lines: str) -> list[str]:
    path = folder / "agent.py"
    path.write_text(textwrap.dedent(ASK) + textwrap.dedent(lines))
    return ["python", str(path)]


def alive(path: Path) -> bool:
    """Return True if the process whose id a file has is alive, after up to five seconds for its end."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            if psutil.Process(int(path.read_text())).status() == psutil.STATUS_ZOMBIE:
                return False
        except psutil.NoSuchProcess:
            return False
        time.sleep(0.02)
    return True


def test_a_script_that_knows_nothing_of_us_plays_an_episode() -> None:
    model = KnownModel("12", "408")
    episode = play(["python", SCRIPT, "2"], model)

    assert (episode.reward, episode.success, episode.finished) == (5.0, True, True)
    assert decode(model.prompts[1]) == "<bos><user>12*34=<end><assistant>12<end><user>=<end><assistant>"
    assert [decode(segment.tokens) for segment in episode.transcript.segments if segment.origin == 1] == [
        "12<end>",
        "408<end>",
    ]


def test_a_program_gets_no_keys_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    services = ("PREFECT_API_KEY", "RAY_AUTH_TOKEN", "WANDB_API_KEY", "OTEL_EXPORTER_OTLP_HEADERS")
    for name in (*services, "HF_TOKEN", "GITHUB_TOKEN", "SSH_AUTH_SOCK", "KEY_OF_THE_SERVER", "MY_SETTING"):
        monkeypatch.setenv(name, "value")
    monkeypatch.setattr(variables, "_withheld", set())
    HTTPClient(RemoteConfig(base_url="http://127.0.0.1:9", api_key_env="KEY_OF_THE_SERVER")).close()
    env = environment("http://127.0.0.1:9/v1", "key")
    assert {name for name, value in env.items() if value == "value"} == {"MY_SETTING"}
    assert (env["OPENAI_BASE_URL"], env["OPENAI_API_KEY"]) == ("http://127.0.0.1:9/v1", "key")


def test_a_function_returns_the_reward() -> None:
    assert play("my_programs:interview", KnownModel("12", "408")).reward == 5.0


def test_without_a_value_the_reward_function_judges() -> None:
    assert play("my_programs:silent", KnownModel("12")).reward is None
    program = {"command": ["python", SCRIPT, "1"], "reward": "function"}
    assert play(program, KnownModel("12")).reward is None


@pytest.mark.parametrize(
    ("lines", "error", "reason"),
    [
        ("ask(); sys.exit('no disk')", ProgramFailedError, "the program failed with exit code 1: no disk"),
        ("ask(); os.kill(os.getpid(), 9)", ProgramFailedError, "exit code 137"),
        ("ask(); time.sleep(60)", ProgramFailedError, r"longer than rollout.agent.program.timeout=1 seconds"),
        ("ask(n=3)", RequestError, "after a refused request: n=3: must be 1, or be left out"),
        ("row['messages'] *= 9; ask()", RequestError, "max_prompt_tokens=24"),
        ("pass", RequestError, "no turn; it must use OPENAI_BASE_URL"),
        ("ask(); print('the answer')", PrintedRewardError, "program.reward=function if the program prints no reward"),
    ],
)
def test_a_program_that_fails(tmp_path: Path, lines: str, error: type[Exception], reason: str) -> None:
    program = {"command": script(tmp_path, lines), "timeout": 1.0 if "sleep" in lines else 60, "retries": 0}
    with pytest.raises(error, match=reason):
        play(program, KnownModel("1", "2"))


DIE_ONCE = """
    def once(number, end):
        marker = os.path.join({folder!r}, str(number))
        if not os.path.exists(marker):
            open(marker, "w").close()
            end()

    def turn(*said):
        message = json.loads(ask(messages=[*row["messages"], *said]))["choices"][0]["message"]
        return [*said, message, {{"role": "user", "content": "="}}]
"""


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "sys.exit('no disk')", "time.sleep(60)"])
def test_a_program_that_fails_starts_again_and_gets_the_turns_that_it_had(tmp_path: Path, end: str) -> None:
    """It fails after its first turn, and after its third, so that its turns are given again twice."""
    lines = textwrap.dedent(DIE_ONCE).format(folder=str(tmp_path)) + (
        f"def end(): {end}\n"
        "said = turn(); once(1, end); said = turn(*said); said = turn(*said); once(3, end)\n"
        "turn(*said); print(len(said))\n"
    )
    path = tmp_path / "agent.py"
    path.write_text(textwrap.dedent(ASK) + lines)
    program = {"command": ["python", str(path)], "timeout": 3.0 if "sleep" in end else 60, "backoff": 0}
    context, model = context_of(program=program, max_turns=4), KnownModel("1", "2", "3", "4")

    episode = play(program, model, context)

    assert episode.reward == 6 and not model.turns
    written = [decode(segment.tokens) for segment in episode.transcript.segments if segment.origin == 1]
    assert written == ["1<end>", "2<end>", "3<end>", "4<end>"]
    assert context.counts.turns == 4 and context.faults.retries == 2


def test_a_turn_that_is_written_while_its_program_dies_is_given_to_the_next(tmp_path: Path) -> None:
    lines = """
    import threading
    if not os.path.exists({marker!r}):
        open({marker!r}, "w").close()
        threading.Thread(target=ask, daemon=True).start()
        time.sleep(0.5)
        os.kill(os.getpid(), 9)
    print(json.loads(ask())["choices"][0]["message"]["content"])
    """.replace("{marker!r}", repr(str(tmp_path / "died")))
    model = KnownModel("7", "8")
    model.wait = lambda: asyncio.sleep(1.5)

    assert play(script(tmp_path, lines), model).reward == 7 and model.turns == ["8"]


def test_a_program_that_differs_when_it_starts_again_is_drawn_again(tmp_path: Path) -> None:
    lines = f"""
    attempts = open({str(tmp_path / "attempts")!r}, "a")
    number = attempts.tell()
    attempts.write("x")
    attempts.flush()
    ask(messages=[dict(row["messages"][0], content=str(number))])
    sys.exit(1)
    """
    model = KnownModel("1", "2", "3")
    with pytest.raises(ProgramChangedError, match="does not repeat what it did before: turn 0 differs"):
        play(script(tmp_path, lines), model)
    assert (tmp_path / "attempts").read_text() == "xx" and model.turns == ["2", "3"]


def test_the_time_of_a_program_does_not_count_that_of_the_model(tmp_path: Path) -> None:
    model = KnownModel("1")
    model.wait = lambda: asyncio.sleep(2.5)
    program = {"command": script(tmp_path, "ask()"), "timeout": 2.0}
    assert play(program, model).reward is None


def test_a_limit_of_the_run_cuts_the_episode_of_a_program_that_fails_by_it() -> None:
    episode = play(["python", SCRIPT, "3"], KnownModel("12", "408"), max_turns=2)
    assert episode.reward is None and not episode.finished


def test_a_program_that_does_not_repeat_is_drawn_again() -> None:
    model = KnownModel("1")

    async def other_tokens() -> None:
        raise ChangedCallError("episode 5, draw 0: turn 0 differs")

    model.wait = other_tokens
    with pytest.raises(ProgramFailedError, match="does not repeat what it did before: episode 5"):
        play(["python", SCRIPT, "1"], model)


def test_a_program_ends_with_its_episode_and_all_its_children(tmp_path: Path) -> None:
    child = tmp_path / "child"
    lines = f"""
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    open({str(child)!r}, "w").write(str(started.pid))
    ask()
    """
    assert play(script(tmp_path, lines), KnownModel("1")).finished
    assert not alive(child)


def test_a_program_ends_with_the_worker(tmp_path: Path) -> None:
    """The process that runs the episode is killed; it cannot clean up."""
    pid = tmp_path / "pid"
    lines = f"open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    worker = tmp_path / "worker.py"
    worker.write_text(textwrap.dedent(WORKER).format(command=script(tmp_path, lines)))
    process = subprocess.Popen(
        [sys.executable, str(worker)], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    try:
        while not (pid.exists() and pid.read_text()):
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not alive(pid)


def test_the_guardian_says_that_a_command_does_not_start() -> None:
    theirs, ours = os.pipe()
    words = [sys.executable, "-P", guardian.__file__, str(theirs), "/no/such/command"]
    done = subprocess.run(words, pass_fds=[theirs], capture_output=True, text=True, check=False)
    os.close(theirs)
    os.close(ours)
    assert done.returncode == 127 and done.stderr == "/no/such/command: No such file or directory\n"


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("", (None, None)),
        ("chatter\nnull\n", (None, None)),
        ("chatter\n0.5\n\n", (0.5, None)),
        ("true", (1.0, None)),
        ('{"reward": 2, "success": false}', (2.0, False)),
        ('{"reward": null}', (None, None)),
    ],
)
def test_printed_rewards(output: str, expected: tuple[float | None, bool | None]) -> None:
    assert read_reward(output) == expected


@pytest.mark.parametrize(
    "output",
    [
        "the answer",
        "NaN",
        "Infinity",
        "1e39",
        f"1{'0' * 400}",
        "[" * 100_000,
        '"1"',
        "[1]",
        '{"score": 1}',
        '{"reward": "1"}',
        '{"reward": null, "success": true}',
        '{"reward": 1, "success": 1}',
        '{"reward": 0, "reward": 1}',
    ],
)
def test_what_is_no_reward_is_an_error(output: str) -> None:
    with pytest.raises(PrintedRewardError, match="the last line of the program's stdout is"):
        read_reward(output)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            {"workflow": "embodyflow.agents.programs.program:Program"},
            "rollout.agent.program: embodyflow.agents.programs.program:Program needs one; allowed are a command",
        ),
        ({"program": ["no-such-command"]}, "rollout.agent.program.command: no-such-command is no command"),
        ({"program": ["python", "no_such_agent.py"]}, "no_such_agent.py does not exist"),
        ({"program": "no_such_module:run"}, "rollout.agent.program=no_such_module:run: cannot import module"),
        ({"program": "my_programs:SCRIPT"}, "rollout.agent.program=my_programs:SCRIPT: must be a function"),
        (
            {"program": ["python"], "tools": ["embodyflow.agents.calculator:calculate"]},
            "rollout.agent.tools: a program brings its own tools",
        ),
    ],
)
def test_mistakes_are_found_before_anything_starts(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason.replace("[", r"\[")):
        Program(AgentConfig(max_turns=1, **config))


@pytest.mark.parametrize("program", [{}, {"command": [], "function": None}, {"command": ["a"], "function": "a:b"}, []])
def test_a_program_is_either_a_command_or_a_function(program: Any) -> None:
    with pytest.raises(ValueError, match="needs either a command"):
        AgentConfig(max_turns=1, program=program)


def test_a_program_chooses_its_workflow() -> None:
    assert AgentConfig(max_turns=1, program=["python"]).workflow == "embodyflow.agents.programs.program:Program"
    assert AgentConfig(max_turns=1, program=["python"], workflow="a:B").workflow == "a:B"
