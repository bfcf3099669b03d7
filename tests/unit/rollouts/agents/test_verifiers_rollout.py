"""Episodes that an environment of verifiers plays, with a real engine, server and trainer, and a stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_jobs import agent_config
from agent_rollouts import assert_trained_as_sampled, give_other_weights, play, rollout_of
from language_jobs import connected_trainer
from vf_stand_in import stand_in

from embodyflow.agents.verifiers.verifiers_workflow import EnvironmentFailedError
from embodyflow.config.agents.agent import AgentJobConfig
from embodyflow.data.batches import to_batch
from embodyflow.data.rows_file import Journal
from embodyflow.data.tables import digest_of
from embodyflow.errors import ConfigError, EpisodeError
from embodyflow.rollouts.agents.agent_checks import check_agent
from embodyflow.training.language_trainer import LanguageTrainer

REWARDS = {"rewards": {"right": 0.75}, "metrics": {}, "is_truncated": False}
PLAY = {"do": "play", "answer": REWARDS}


def config_of(folder: Path, *tasks: dict, overrides: tuple[str, ...] = ()) -> AgentJobConfig:
    python = stand_in(folder, *tasks)
    return agent_config(
        *("data=verifiers", "data.num_validation=1", "reward=workflow", "warm_start=null", "evaluation.num_prompts=1"),
        *("rollout.agent.tools=[]", "rollout.num_groups=1"),
        f"rollout.agent.verifiers={{taskset: any, python: {python}}}",
        *overrides,
    )


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageTrainer]:
    with connected_trainer(config_of(tmp_path_factory.mktemp("trainer"), PLAY, PLAY)) as trainer:
        yield trainer


def test_the_trained_tokens_are_the_sampled_ones_and_a_lost_worker_takes_them(
    trainer: LanguageTrainer, tmp_path: Path
) -> None:
    config = config_of(tmp_path, PLAY, PLAY)
    rollout, journal = rollout_of(config, trainer), Journal(tmp_path / "stage" / "0.0.parts")
    expected = play(rollout, journal)
    rows = to_batch(expected)

    assert_trained_as_sampled(rows, trainer)
    assert rows["loss_mask"].sum() >= 2
    assert rows["own_reward"].tolist() == [0.75] * 2 and rows["rewarded"].all()
    assert rollout.fault_metrics()["rollout/verifiers/right"].value == 0.75

    (tmp_path / "stage" / "0.0.parts").unlink()  # lost before the rows were complete
    give_other_weights(rollout, trainer)
    assert digest_of(play(rollout, journal)) == digest_of(expected)
    rollout.close()


def test_episodes_of_a_process_that_dies_are_drawn_again_and_counted(trainer: LanguageTrainer, tmp_path: Path) -> None:
    dies = {"do": "die once", "marker": str(tmp_path / "marker"), "answer": REWARDS}
    rollout = rollout_of(config_of(tmp_path, PLAY, dies), trainer)

    rows = play(rollout)

    assert rows["own_reward"].tolist() == [0.75] * 2
    assert rollout.fault_metrics()["perf/redrawn_episodes"].value >= 1
    rollout.close()


def test_an_environment_that_raises_ends_the_run_with_the_episode_named(
    trainer: LanguageTrainer, tmp_path: Path
) -> None:
    raises = {"do": "play", "answer": {"error": {"type": "TaskError", "message": "right: KeyError"}}}
    rollout = rollout_of(config_of(tmp_path, PLAY, raises), trainer)
    with pytest.raises(EpisodeError, match=r"^workflow of episode \d+: EnvironmentFaultError: .*: right: KeyError$"):
        play(rollout)
    rollout.close()


def test_an_environment_that_always_fails_ends_the_run(trainer: LanguageTrainer, tmp_path: Path) -> None:
    fails = {"do": "play", "answer": {"error": {"type": "SandboxError", "message": "no disk"}}}
    rollout = rollout_of(config_of(tmp_path, PLAY, fails, overrides=("rollout.agent.max_redraws=1",)), trainer)
    with pytest.raises(EnvironmentFailedError, match="SandboxError: no disk") as failure:
        play(rollout)
    assert failure.value.__notes__[0].endswith("drawn 2 times")
    rollout.close()


def test_mistakes_are_one_line_before_a_run_starts(tmp_path: Path) -> None:
    check_agent(config_of(tmp_path, PLAY, PLAY))
    with pytest.raises(ConfigError, match=r"^data: rollout.agent.verifiers=any needs data=verifiers$"):
        check_agent(agent_config("warm_start=null", "rollout.agent.tools=[]", "rollout.agent.verifiers=any"))
    interview = "rollout.agent.workflow=agent_jobs:Interview", "rollout.agent.tools=[agent_jobs:look_up]"
    with pytest.raises(
        ConfigError, match=r"^rollout.agent.verifiers: rollout.agent.workflow=agent_jobs:Interview does"
    ):
        check_agent(config_of(tmp_path, PLAY, PLAY, overrides=interview))
    with pytest.raises(ConfigError, match=r"rollout.agent.verifiers") as error:
        agent_config("data=verifiers")
    assert "\n" not in str(error.value)
