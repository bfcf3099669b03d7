"""Episodes that a program plays, with a real engine, processes, server and trainer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from agent_jobs import agent_config, agent_words
from agent_rollouts import assert_trained_as_sampled, give_other_weights, play, rollout_of
from language_jobs import connected_trainer
from my_programs import SCRIPT

from benchmarks.control.in_process import InProcessRun
from embodyflow.agents.programs.program import ProgramFailedError
from embodyflow.config.agents.agent import AgentJobConfig
from embodyflow.data.batches import to_batch
from embodyflow.data.rows_file import Journal
from embodyflow.data.tables import digest_of
from embodyflow.errors import ConfigError
from embodyflow.rollouts.agents.agent_checks import check_agent
from embodyflow.training.language_trainer import LanguageTrainer

SMALL = ("rollout.agent.tools=[]", "warm_start=null", "rollout.num_groups=1")


def program_words(program: str, *overrides: str) -> list[str]:
    return agent_words(*SMALL, f"rollout.agent.program={program}", *overrides)


def program_config(program: str, *overrides: str) -> AgentJobConfig:
    return agent_config(*SMALL, f"rollout.agent.program={program}", *overrides)


@pytest.fixture(scope="module")
def trainer() -> Iterator[LanguageTrainer]:
    with connected_trainer(program_config("my_programs:interview")) as trainer:
        yield trainer


def test_two_iterations_train_a_script_that_knows_nothing_of_us() -> None:
    run = InProcessRun(
        program_words(f"[python,{SCRIPT},'2']", "filter.drop_uniform=false", "rollout.agent.max_turns=2")
    )
    run.warm_start()

    before = {name: array.copy() for name, array in run.trainer.weights().items()}
    names = run.iterate(1).keys() | run.iterate(2).keys()

    assert {"perf/redrawn_episodes", "rollout/turns"} <= names
    changed = [name for name, array in run.trainer.weights().items() if not np.array_equal(array, before[name])]
    assert len(changed) > 5
    run.rollout.close()
    run.trainer.close()


def test_the_trained_tokens_are_the_sampled_ones_and_a_lost_worker_takes_them(
    trainer: LanguageTrainer, tmp_path: Path
) -> None:
    config = program_config("my_programs:interview")
    rollout, journal = rollout_of(config, trainer), Journal(tmp_path / "stage" / "0.0.parts")
    expected = play(rollout, journal)
    rows = to_batch(expected)

    assert_trained_as_sampled(rows, trainer)
    assert rows["num_turns"].tolist() == [2] * 2
    assert rows["loss_mask"].sum() >= 4

    (tmp_path / "stage" / "0.0.parts").unlink()  # lost before the rows were complete
    give_other_weights(rollout, trainer)
    assert digest_of(play(rollout, journal)) == digest_of(expected)
    rollout.close()


def test_programs_that_die_between_turns_do_not_change_the_rows_and_are_counted(
    trainer: LanguageTrainer, tmp_path: Path
) -> None:
    """Each program is killed after its first turn, starts again, and is given that turn."""
    folder = tmp_path / "deaths"
    program = "{command: [python," + f"{SCRIPT},'3',{folder}" + "], backoff: 0.0}"
    config = program_config(program, "rollout.agent.max_turns=3")
    rollout = rollout_of(config, trainer)
    expected = play(rollout)
    assert rollout.fault_metrics()["perf/tool_retries"].value == 0
    folder.mkdir()

    rows = play(rollout)

    assert rows["num_turns"].tolist() == [3] * 2 and len(list(folder.iterdir())) == 2
    assert digest_of(rows) == digest_of(expected)
    faults = {name: metric.value for name, metric in rollout.fault_metrics().items()}
    assert (faults["perf/tool_retries"], faults["perf/redrawn_episodes"]) == (2, 0)
    rollout.close()


def test_a_program_that_fails_in_all_attempts_is_drawn_again_and_counted(
    trainer: LanguageTrainer, tmp_path: Path
) -> None:
    crashed = tmp_path / "crashed"
    agent = tmp_path / "agent.py"
    agent.write_text(
        f"import os, runpy, sys\nif not os.path.exists({str(crashed)!r}):\n    open({str(crashed)!r}, 'w').close()\n"
        f"    sys.exit(3)\nsys.argv[1:] = ['1']\nrunpy.run_path({SCRIPT!r}, run_name='__main__')\n"
    )
    rollout = rollout_of(program_config("{command: [python," + str(agent) + "], retries: 0}"), trainer)

    rows = play(rollout)

    assert rows["num_turns"].tolist() == [1] * 2
    assert rollout.fault_metrics()["perf/redrawn_episodes"].value == 1
    rollout.close()


def test_a_program_that_always_fails_ends_the_run(trainer: LanguageTrainer) -> None:
    program = "{command: [python,'-c','import sys; sys.exit(5)'], retries: 1, backoff: 0.0}"
    config = program_config(program, "rollout.agent.max_redraws=0")
    rollout = rollout_of(config, trainer)
    with pytest.raises(ProgramFailedError, match="the program failed with exit code 5") as failure:
        play(rollout)
    assert failure.value.__notes__[0].endswith("drawn 1 times")
    rollout.close()


def test_a_wrong_program_is_one_line_before_a_run_starts() -> None:
    with pytest.raises(ConfigError, match=r"rollout.agent.program.command: no-such is no command"):
        check_agent(program_config("[no-such]"))
    with pytest.raises(
        ConfigError, match=r"rollout.agent.program: rollout.agent.workflow=agent_jobs:Interview does not"
    ):
        overrides = "rollout.agent.workflow=agent_jobs:Interview", "rollout.agent.tools=[agent_jobs:look_up]"
        check_agent(program_config("my_programs:interview", *overrides))
    check_agent(program_config("my_programs:interview"))
