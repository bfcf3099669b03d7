"""Environment classes with the real engine and trainer in one process: rows, replay, evaluation, checks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import environment_classes
import numpy as np
import pytest
import torch
from agent_jobs import agent_config
from agent_rollouts import play
from environment_classes import FAULTS
from trainers import free_address

from embodyflow.agents.tools.tool_calls import PARSERS, ToolCall
from embodyflow.agents.workflow_registry import build_workflow
from embodyflow.config.agents.agent import AgentConfig
from embodyflow.data.batches import to_batch
from embodyflow.data.rows_file import Journal
from embodyflow.data.tables import digest_of
from embodyflow.errors import ConfigError
from embodyflow.rollouts.agents.agent_rollout import AgentRollout
from embodyflow.training.language_trainer import LanguageTrainer

TASKS = (
    "data={name: seeds, num_train: 8, num_validation: 4, num_demos: 0, prompt: '7*'}",
    *("reward=workflow", "warm_start=null", "rollout.agent.tools=[]"),
    *("rollout.max_prompt_tokens=24", "rollout.max_response_tokens=100"),
)


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[AgentRollout, LanguageTrainer]]:
    config = agent_config(*TASKS, "rollout.agent.environment=environment_classes:Increment")
    trainer = LanguageTrainer(config, 0, 1)
    trainer.connect(free_address())
    rollout = AgentRollout(config, 0, 1)
    rollout.update_weights(trainer.weights() | trainer.probe(), version=3)
    # An untrained model ends no turn: here most tokens do. Its calls follow from what it wrote.
    rollout._stop_tokens = tuple(range(len(rollout.tokenizer) // 2))
    yield rollout, trainer
    trainer.close()
    rollout.close()


@pytest.fixture
def rollout(engines, monkeypatch) -> AgentRollout:
    rollout = engines[0]
    monkeypatch.setitem(PARSERS, "hermes", lambda text, before: [ToolCall("increment", {"step": len(text)})])
    return use(rollout, "Increment")


def use(rollout: AgentRollout, name: str, **agent: object) -> AgentRollout:
    """Let a rollout play another environment."""
    environment = f"environment_classes:{name}"
    rollout._agent = AgentConfig.model_validate({"max_turns": 4, "environment": environment, **agent})
    rollout._workflow = build_workflow(rollout._agent)
    return rollout


def test_episodes_are_rows_with_the_environments_prompt_and_reward(engines, rollout) -> None:
    rows = to_batch(play(rollout))

    assert (rows["num_turns"] == 4).all() and (rows["tool_calls"] == 3).all() and rows["rewarded"].all()
    prompts = [rollout.tokenizer.decode(row["prompt_tokens"][: row["prompt_length"]]) for row in rows]
    targets = []
    for prompt, row in zip(prompts, rows, strict=True):
        target = prompt.partition("<user>7*")[2].partition("=<end><assistant>")[0]
        targets.append(int(target))
        answers = rollout.tokenizer.decode(row["action_tokens"][:, 0][row["token_origin"][:, 0] == 2])
        last = answers.split("<tool>")[-1].partition("<end>")[0]
        assert row["own_reward"] == int(last) - targets[-1]
    assert targets[0] == targets[1] and targets[2] == targets[3]  # siblings have the same task
    with torch.no_grad():
        theirs, _ = engines[1].policy.evaluate(rows, 1.0)
    assert (theirs - rows["log_probs"]).abs().max() < 1e-5
    assert digest_of(play(rollout)) == digest_of(play(rollout))


def test_a_lost_workers_episodes_are_played_on(rollout, tmp_path: Path, monkeypatch) -> None:
    expected, generated = play(rollout, Journal(tmp_path / "one" / "0.0.parts")), []
    increment = environment_classes.Increment.increment

    def interrupted(self, step: int) -> int:
        generated.append(step)
        if len(generated) == 7:
            raise KeyboardInterrupt
        return increment(self, step)

    monkeypatch.setattr(environment_classes.Increment, "increment", interrupted)
    rollout._workflow.environments.all()[0].tools["increment"].config = (
        rollout._agent.environment.model_copy(update={"retries": 0})  # the interruption would be retried
    )
    rollout._agent = rollout._agent.model_copy(update={"max_redraws": 0})
    journal = Journal(tmp_path / "two" / "0.0.parts")
    with pytest.raises(Exception, match="KeyboardInterrupt"):
        play(rollout, journal)
    lines = [json.loads(line) for line in (tmp_path / "two" / "0.0.calls.parts").read_text().splitlines()]
    assert sum(line["key"][0] == "tool" and line["key"][3] >= 0 for line in lines) >= 6

    monkeypatch.setattr(environment_classes.Increment, "increment", increment)
    rows = play(use(rollout, "Increment"), journal)

    assert digest_of(rows) == digest_of(expected)


def test_faults_of_the_environment_do_not_change_the_rows(rollout, monkeypatch) -> None:
    monkeypatch.setitem(PARSERS, "hermes", lambda text, before: [ToolCall("step", {"number": len(text)})] * 2)
    # One call may meet all faults, since the order in which episodes call depends on time.
    use(rollout, "Fragile", environment={"factory": "environment_classes:Fragile", "retries": 5, "backoff": 0})
    expected = play(rollout)
    FAULTS[:] = ["reset", "step", "step", "reset", "step"]

    rows = play(rollout)

    assert digest_of(rows) == digest_of(expected) and not FAULTS
    assert expected["own_reward"].tolist() == [6.0] * 4
    assert rollout.fault_metrics()["perf/tool_retries"].value >= 3


def test_an_evaluation_has_tasks_of_its_own(rollout) -> None:
    rows = rollout.play(rollout.evaluation_episodes(), "eval", None)
    again = rollout.play(rollout.evaluation_episodes(), "eval", None)

    assert digest_of(rows) == digest_of(again) and np.array_equal(rows["prompt_id"], range(4))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["rollout.agent.environment=environment_classes:Coding"],
            "environment_classes:Coding: has no get_reward",
        ),
        (
            ["rollout.agent.environment=environment_classes:Game"],
            "environment_classes:Game: reset needs goal",
        ),
        (
            ["rollout.agent.environment={a: 'environment_classes:Increment'}"],
            "rollout.agent.environment: prompt 4 of seeds has no column environment; needs one with a",
        ),
        (
            [
                "rollout.agent.environment=environment_classes:Increment",
                "rollout.agent.workflow=embodyflow.agents.tool_loop:ToolLoop",
            ],
            "rollout.agent.environment: rollout.agent.workflow=.*ToolLoop does not use it; allowed are workflows that",
        ),
        (
            ["rollout.agent.workflow=embodyflow.agents.environments.environment_loop:EnvironmentLoop"],
            "rollout.agent.environment: must be set",
        ),
        (
            ["rollout.agent.environment={factory: 'environment_classes:Increment', seeds: 3}"],
            "rollout.agent.environment.seeds: ",
        ),
        (
            ["rollout.agent.environment=environment_classes:Increment", "rollout.agent.parser=schema"],
            "rollout.agent.parser=schema: the tokenizer has no response_template",
        ),
        (
            ["rollout.agent.environment=environment_classes:Increment", "rollout.agent.mistakes=['builtins:int']"],
            "rollout.agent.mistakes=builtins:int: must name a subclass of Exception",
        ),
    ],
)
def test_mistakes_of_a_configuration_are_one_line(overrides, message) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        agent_config(*TASKS, *overrides)
    assert "\n" not in str(error.value)
