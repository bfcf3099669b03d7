"""Tasksets of the package verifiers, unchanged, in a process of their own."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from typing import Any

import numpy as np
import pytest
from agent_jobs import agent_words
from episode_clients import CALL, TOKENIZER, KnownModel, context_of

from benchmarks.control.in_process import InProcessRun
from embodyflow.agents.episode import Episode
from embodyflow.agents.verifiers.verifiers_workflow import EnvironmentFaultError, VerifiersWorkflow
from embodyflow.agents.workflow import ChatEngine
from embodyflow.errors import ConfigError
from embodyflow.prompts.prompts import Prompt
from embodyflow.prompts.verifiers.environment_process import tasks_of
from embodyflow.prompts.verifiers.verifiers_config import VerifiersConfig
from embodyflow.prompts.word_tokenizer import word_tokenizer

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(900),  # importing the package takes 30 seconds on a busy machine
    pytest.mark.skipif(importlib.util.find_spec("verifiers") is None, reason="needs the extra verifiers"),
]
PRODUCT = {"prompt": "12*34=", "answer": "408"}
LETTERS = word_tokenizer(
    [*map(chr, range(32, 127)), "\n"], end="<end>", roles=("<assistant>",), chat_template=TOKENIZER.chat_template
)
CALCULATE = CALL.replace("calculate", "calculator_calculate")


def play(
    taskset: str, task: dict[str, str], *episodes: tuple[str, ...], **agent: Any
) -> list[tuple[Episode, KnownModel]]:
    """Play a task with models whose turns are known, one after the other, in one process."""
    context = context_of(verifiers=taskset, **agent)
    workflow = VerifiersWorkflow(context.config)
    row = Prompt(0, None, [{"role": "user", "content": task["prompt"]}], "", taskset, {"task": task})

    async def run(model: KnownModel) -> Episode:
        return await workflow.run(ChatEngine(model, LETTERS, 400, 1000), row, context_of(verifiers=taskset, **agent))

    models = [KnownModel(*turns, tokenizer=LETTERS) for turns in episodes]
    try:
        return [(asyncio.run(run(model)), model) for model in models]
    finally:
        workflow.close()


def test_two_iterations_train_on_a_taskset() -> None:
    run = InProcessRun(
        agent_words(
            *("data=verifiers", "data.num_validation=2", "evaluation.num_prompts=2", "reward=workflow"),
            *(
                "warm_start=null",
                "rollout.agent.tools=[]",
                "filter.drop_uniform=false",
                "rollout.max_response_tokens=20",
            ),
            "rollout.agent.verifiers={taskset: vf_products, settings: {taskset: {number: 6, left: 13}}}",
        )
    )
    run.warm_start()

    before = {name: array.copy() for name, array in run.trainer.weights().items()}
    names = run.iterate(1).keys() | run.iterate(2).keys()

    assert {f"rollout/verifiers/{name}" for name in ("right", "digits", "letters")} <= names
    changed = [name for name, array in run.trainer.weights().items() if not np.array_equal(array, before[name])]
    assert len(changed) > 5
    assert "verifiers" not in sys.modules
    run.rollout.close()
    run.trainer.close()


def test_the_model_calls_the_tools_of_a_taskset_until_a_limit() -> None:
    (right, model), (cut, _) = play(
        "vf_calculator", PRODUCT, (CALCULATE, "## 408"), (CALCULATE, CALCULATE, "## 408"), max_turns=2
    )

    assert (right.reward, right.success, right.finished) == (1.0, True, True)
    assert LETTERS.decode(model.prompts[1]).endswith(
        f"<user>12*34=<end><assistant>{CALCULATE}<end><tool>408<end><assistant>"
    )
    assert (cut.reward, cut.success, cut.finished) == (0.0, False, False)


def test_a_reward_that_raises_is_no_reward() -> None:
    with pytest.raises(EnvironmentFaultError, match=r"vf_faults: TaskError: .*KeyError: 'answer'"):
        play("vf_faults", {"prompt": "1*1="}, ("1",))


@pytest.mark.parametrize(
    ("taskset", "settings", "reason"),
    [
        ("vf_nothing", {}, r"taskset 'vf_nothing' not found"),
        ("vf_faults", {"taskset": {"fault": "no tasks"}}, "it has no tasks$"),
        (
            "vf_silent",
            {},
            "it gives no reward; its Task needs a method with @vf.reward$",
        ),
        (
            "vf_faults",
            {"taskset": {"fault": "another type"}},
            "its tasks are of Silent; its class must be a Taskset of",
        ),
        ("vf_faults", {"taskset": {"fault": "no prompt"}}, "task 0 has no prompt; allowed are tasks that open"),
        ("vf_faults", {"taskset": {"fault": "raises"}}, "its tasks cannot be loaded: FileNotFoundError: rows.json$"),
        ("vf_faults", {"taskset": {"fail": 1}}, "settings.taskset.fail: "),
        ("vf_faults", {"id": "agentic-judge"}, "its agents are .*; allowed are environments with one agent$"),
    ],
)
def test_an_environment_that_cannot_be_trained_on_is_one_line(
    taskset: str, settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^rollout.agent.verifiers={taskset}: .*{reason}") as error:
        tasks_of(VerifiersConfig(taskset=taskset, settings=settings), None)
    assert "\n" not in str(error.value)


def test_a_system_prompt_begins_the_chat() -> None:
    [task] = tasks_of(VerifiersConfig(taskset="vf_faults"), 1)
    assert task["messages"] == [{"role": "system", "content": "2*2="}, {"role": "user", "content": "1*1="}]
