"""Complete runs in a natively batched environment: they learn, and their weights are those of single environments."""

from pathlib import Path

import pytest
from small_runs import Runs
from support_path import SUPPORT_PATH
from waiting import finish

pytestmark = pytest.mark.integration

WORDS = (
    *("experiment=reacher", "env.id=point_masses:tests/Points-v0", "env.max_steps=20", "iterations=6"),
    *("policy.state_dim=null", "policy.action_dim=null", "policy.hidden_size=32", "trainer.learning_rate=2e-3"),
    *("critic.learning_rate=2e-3", "trainer.num_minibatches=4", "rollout.num_workers=1", "rollout.envs_per_worker=8"),
    *("rollout.num_steps=64", "evaluation.num_episodes=5", "evaluation.every=6"),
)
BATCH = "env.vector.mode=entry_point"


@pytest.mark.slow
def test_a_run_learns_and_equals_one_of_single_environments_also_after_a_death(
    tmp_path: Path, prefect_api: str, ray_env: dict[str, str]
) -> None:
    runs = Runs(tmp_path).served_by(prefect_api, PYTHONPATH=SUPPORT_PATH, **ray_env)

    def train(run_id: str, *words: str) -> None:
        process = runs.start(*WORDS, *words, f"run_root={runs.root}", f"run_id={run_id}", flow="ppo")
        output = finish(process)
        assert process.returncode == 0, output[-4000:]

    train("single")
    train("batch", BATCH)
    died = tmp_path / "died"
    plan = f"+env.kwargs.plan={died}", "+env.kwargs.at=300", "+env.kwargs.autoreset=SameStep"
    train("killed", BATCH, "rollout.env_processes=1", *plan)
    summary = runs.summary("batch")
    before, after = summary["return_before"], summary["return_after"]
    assert isinstance(before, float) and isinstance(after, float)
    assert after > before + 3, "an episode at rest in its first state has a return of 10, one at the middle 20"
    runs.assert_same_training("batch", "single")
    assert died.exists() and sum(record.get("perf/env_restarts", 0) for record in runs.records("killed")) == 1
    runs.assert_same_training("killed", "single")
