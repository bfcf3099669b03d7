"""Environment classes of TRL's form: tools, state, seeds, and what happens after failures and lost workers."""

import asyncio
import random
from pathlib import Path

import environment_classes
import numpy as np
import pytest
from agent_jobs import never_judged
from environment_classes import FAULTS, Fragile, Judged

from embodyflow.agents.chat.call_journal import CallJournal
from embodyflow.agents.environments.environment_class import EnvironmentClass, Environments
from embodyflow.agents.environments.environment_loop import EnvironmentLoop, with_text
from embodyflow.agents.environments.environment_session import EnvironmentSession
from embodyflow.agents.episode import EpisodeContext, Faults, ToolFailedError
from embodyflow.agents.tools.tool_runner import ToolRunner
from embodyflow.config.agents.agent import AgentConfig
from embodyflow.errors import ConfigError
from embodyflow.prompts.prompts import Prompt

MESSAGES = [{"role": "system", "content": "Play."}, {"role": "user", "content": "Go: "}]


def agent(environment, **rest) -> AgentConfig:
    if isinstance(environment, str):
        environment = f"environment_classes:{environment}"
    return AgentConfig.model_validate({"max_turns": 3, "environment": environment, **rest})


def limits(name, **rest):
    return agent({"factory": f"environment_classes:{name}", "backoff": 0.0, **rest})


def row_of(number=0, **columns) -> Prompt:
    return Prompt(number, None, MESSAGES, "7", "tasks", columns)


def context_of(config, journal: Path | None = None, seed=5, draw=0) -> EpisodeContext:
    return EpisodeContext(3, seed, "train", draw, config, CallJournal(journal), ToolRunner(), Faults(), never_judged)


def play(config, *calls, row=None, journal=None, seed=5, reward=True):
    """Play calls ``(name, arguments)``; return the text of reset, the answers, the reward and the context."""
    row, context = row or row_of(), context_of(config, journal, seed)

    async def episode():
        session = EnvironmentSession(Environments(config).of(row), row, context)
        text = await session.begin()
        answers = await asyncio.gather(*(session.call(session.tools[name], each) for name, each in calls))
        return text, answers, await session.reward() if reward else None

    return *asyncio.run(episode()), context


@pytest.fixture(autouse=True)
def no_faults():
    FAULTS.clear()
    yield
    assert not FAULTS


def test_public_methods_are_tools_described_by_their_docstrings():
    environment = EnvironmentClass("environment_classes:Increment", agent("Increment"))

    assert list(environment.tools) == ["increment"] and environment.gives_reward
    assert environment.tools["increment"].schema == {
        "type": "function",
        "function": {
            "name": "increment",
            "description": "Increment the internal counter.",
            "parameters": {
                "type": "object",
                "properties": {"step": {"type": "integer", "description": "Value to add to the counter."}},
                "required": ["step"],
            },
        },
    }


@pytest.mark.parametrize("name", ["Increment", "make_increment"])
def test_a_class_or_a_function_makes_an_instance_for_each_episode(name):
    text, answers, reward, context = play(agent(name), ("increment", {"step": 2}), ("increment", {"step": 3}))

    assert answers == ["2", "5"] and reward == 5 - int(text[0])
    assert (context.counts.calls, context.counts.mistakes) == (2, 0)
    assert play(agent(name), ("increment", {"step": 2}))[1] == ["2"]


def test_draws_of_the_global_generators_are_those_of_the_row_and_the_episode():
    outside = random.getstate(), np.random.get_state()[1].tolist()
    targets = {play(agent("Increment"), row=row_of(number), seed=seed)[0] for number in (1,) for seed in range(9)}
    others = {play(agent("Increment"), row=row_of(number))[0] for number in range(9)}
    rolls = [play(agent("Dice"), *[("roll", {})] * 6, seed=seed)[1] for seed in (1, 1, 2)]

    assert len(targets) == 1 and len(others) > 2
    assert rolls[0] == rolls[1] != rolls[2] and len(set(rolls[0])) > 2
    assert (random.getstate(), np.random.get_state()[1].tolist()) == outside


def test_coroutines_are_seeded_whatever_other_tasks_draw_meanwhile():
    def rolls(seed, disturb=False):
        config, context = agent("SlowDice"), context_of(agent("SlowDice"), seed=seed)
        others = []

        async def draw():
            while True:
                others.append(random.random())
                np.random.random()
                await asyncio.sleep(0)

        async def episode():
            session = EnvironmentSession(Environments(config).of(row_of()), row_of(), context)
            task = asyncio.create_task(draw()) if disturb else None
            seen = [await session.begin()]
            seen += [await session.call(session.tools[name], {}) for name in ("roll", "fumble", "roll")]
            if task is not None:
                task.cancel()
            return seen

        return asyncio.run(episode()), others

    before = random.getstate()
    alone, _ = rolls(1)
    assert random.getstate() == before
    disturbed, others = rolls(1, disturb=True)
    random.setstate(before)

    assert disturbed == alone and len(set(alone)) == 4
    assert len(others) > 9 and others == [random.random() for _ in others]  # tasks beside it draw as if it did not
    assert rolls(2)[0][0] == alone[0]  # siblings begin alike
    assert rolls(2)[0][1:] != alone[1:]


def test_several_calls_at_a_time_are_not_seeded_and_do_not_wait_for_each_other():
    config = limits("Dice", concurrency=8)
    runner, contexts = ToolRunner(), [context_of(config, seed=seed) for seed in range(8)]

    async def episode(context):
        context.runner = runner
        session = EnvironmentSession(Environments(config).of(row_of()), row_of(), context)
        await session.begin()
        await session.call(session.tools["wait"], {"seconds": 0.3})
        return await session.reward()

    async def episodes():
        return await asyncio.wait_for(asyncio.gather(*map(episode, contexts)), 2.0)

    assert asyncio.run(episodes()) == [0.0] * 8


def test_reset_gets_the_columns_of_the_row_that_it_takes():
    text, *_ = play(agent("Coding"), row=row_of(target=3, seed=8))
    assert text == str(sorted(("data_source", "ground_truth", "prompt", "seed", "split", "target")))
    assert play(agent("Game"), row=row_of(goal="up", other=1))[0] == "up"
    with pytest.raises(ConfigError, match="environment_classes:Game: reset needs goal; prompt 0 of tasks has data_sou"):
        play(agent("Game"))


def test_a_mapping_mixes_environments_by_a_column_of_the_rows():
    config = agent({"coding": "environment_classes:Coding", "game": "environment_classes:Game"})
    loop = EnvironmentLoop(config)

    assert [list(loop.tools_of(row_of(environment=name))) for name in ("coding", "game")] == [["run_code"], ["move"]]
    assert play(config, ("move", {"action": "up"}), row=row_of(environment="game", goal="there"))[:3] == (
        "there",
        ["up"],
        None,
    )
    assert "environment" not in play(config, row=row_of(environment="coding"))[0]
    with pytest.raises(ConfigError, match="prompt 0 of tasks names 'chess'; allowed are coding, game"):
        loop.tools_of(row_of(environment="chess"))
    with pytest.raises(ConfigError, match="prompt 0 of tasks has no column environment; needs one with coding, game"):
        loop.tools_of(row_of())


def test_the_text_of_reset_ends_the_last_message():
    assert with_text(row_of(), "left").messages == [MESSAGES[0], {"role": "user", "content": "Go: left"}]
    assert with_text(row_of(), None) == row_of() and MESSAGES[1]["content"] == "Go: "


@pytest.mark.parametrize("fault", ["step", "step hang"])
def test_a_retry_goes_on_with_a_new_instance_in_the_same_state(fault):
    """The failed call had changed the instance, which the retry must not see."""
    Fragile.built = 0
    FAULTS.append(fault)
    config = limits("Fragile", timeout=0.3)
    _, answers, reward, context = play(config, *(("step", {"number": number}) for number in (1, 2)))
    assert answers == ["[1]", "[1, 2]"] and reward == 2
    assert Fragile.built == 2 and context.faults.retries == 1


def test_earlier_calls_are_made_again_before_a_retry():
    config = limits("Fragile", retries=3).model_copy(update={"mistakes": ("builtins:LookupError",)})
    context = context_of(config)

    async def episode():
        session = EnvironmentSession(Environments(config).of(row_of()), row_of(), context)
        await session.begin()
        assert await session.call(session.tools["step"], {"number": 1}) == "[1]"
        assert await session.call(session.tools["refuse"], {"number": 2}) == "error: no step 2"
        FAULTS[:] = ["step", "reset", "step"]  # of the call, of the first attempt to restore, of the second one
        return await session.call(session.tools["step"], {"number": 3})

    assert asyncio.run(episode()) == "[1, 2, 3]"
    assert context.counts.mistakes == 1 and context.faults.retries == 3


def test_a_failure_for_good_is_one_of_the_infrastructure():
    FAULTS[:] = ["step"] * 3
    with pytest.raises(ToolFailedError, match="tool step: ConnectionResetError: reset by peer"):
        play(agent("Fragile"), ("step", {"number": 1}))
    FAULTS[:] = ["reset"] * 3
    with pytest.raises(ToolFailedError, match="tool reset: ConnectionResetError: reset by peer"):
        play(agent("Fragile"))


def test_exceptions_are_text_to_the_model_only_where_the_configuration_says_so():
    assert play(agent("Fragile", mistakes=["builtins:Exception"]), ("refuse", {"number": 4}))[1:3] == (
        ["error: no step 4"],
        1.0,
    )
    with pytest.raises(ToolFailedError, match="LookupError: no step 4"):
        play(agent("Fragile"), ("refuse", {"number": 4}))


def test_wrong_arguments_are_mistakes_that_do_not_reach_the_environment():
    _, answers, reward, context = play(agent("Fragile"), ("step", {"number": "many"}))

    assert answers[0].startswith("error: step: number: ") and reward == 0 and context.counts.mistakes == 1


def test_a_replaced_worker_makes_recorded_calls_again_for_their_effect(tmp_path):
    calls = [("step", {"number": number}) for number in (1, 2, 3)]
    play(agent("Fragile"), *calls[:2], journal=tmp_path / "a" / "0.parts", reward=False)

    _, answers, reward, _ = play(agent("Fragile"), *calls, journal=tmp_path / "a" / "0.parts")

    assert answers == ["[1]", "[1, 2]", "[1, 2, 3]"] and reward == 3


def test_recorded_answers_count_even_if_the_environment_answers_otherwise(tmp_path, caplog):
    config = limits("Dice", concurrency=2)  # not seeded
    journal = tmp_path / "a" / "0.parts"
    answers = play(config, *[("roll", {})] * 9, journal=journal, reward=False)[1]

    assert play(config, *[("roll", {})] * 9, journal=journal)[1] == answers
    assert "episode 3: roll does not answer as before; the recorded answer counts" in caplog.text


def test_recorded_calls_of_an_outer_world_are_not_made_again(tmp_path):
    config, calls = limits("Fragile", replay="record"), [("step", {"number": number}) for number in (1, 2, 3)]
    play(config, *calls[:2], journal=tmp_path / "a" / "0.parts", reward=False)

    _, answers, reward, _ = play(config, *calls, journal=tmp_path / "a" / "0.parts")

    assert answers == ["[1]", "[1, 2]", "[3]"] and reward == 1


def test_a_recorded_reward_counts(tmp_path):
    assert play(agent("Fragile"), journal=tmp_path / "a" / "0.parts")[2] == 0
    FAULTS.append("reward")
    assert play(agent("Fragile"), journal=tmp_path / "a" / "0.parts")[2] == 0
    FAULTS.clear()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "must return a number, gave NoneType"),
        ("1", "must return a number, gave str"),
        (float("nan"), "must return a finite number, gave nan"),
    ],
)
def test_a_reward_that_is_no_number_ends_the_run(monkeypatch, value, reason):
    monkeypatch.setattr(Judged, "reward", value)
    with pytest.raises(RuntimeError, match=f"environment_classes:Judged: get_reward: .*{reason}"):
        play(agent("Judged"))


def test_a_reward_that_raises_ends_the_run():
    FAULTS.append("reward")
    with pytest.raises(RuntimeError, match="environment_classes:Fragile: get_reward: ConnectionResetError: reset by"):
        play(agent("Fragile"))


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ("environment_classes:Chess", "rollout.agent.environment: environment_classes:Chess: .*no attribute 'Chess'"),
        ("environment_classes:WithoutReset", r"=environment_classes:WithoutReset: has no method reset\(\*\*row\)"),
        ("environment_classes:WithoutTools", "has no public method besides reset and get_reward; the model needs a to"),
        ("environment_classes:Untyped", "move is no tool: .*needs a type for each argument"),
        ("environment_classes:FAULTS", "must be a class, or a function that makes an environment"),
        ({}, "rollout.agent.environment: names no environment"),
    ],
)
def test_what_is_no_environment_is_refused_in_one_line(environment, message):
    with pytest.raises(ConfigError, match=message) as error:
        EnvironmentLoop(agent(environment) if isinstance(environment, dict) else agent(environment.split(":")[1]))
    assert "\n" not in str(error.value)


def test_a_tool_with_the_name_of_a_method_is_refused():
    config = agent("Coding", tools=["environment_classes:run_code"])
    environment_classes.run_code = environment_classes.Coding().run_code
    try:
        with pytest.raises(ConfigError, match="tools: run_code is also a method of environment_classes:Coding; names"):
            EnvironmentLoop(config)
    finally:
        del environment_classes.run_code
