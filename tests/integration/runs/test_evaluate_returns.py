"""A control run, evaluated in training and by ``flows.evaluate``."""

import json
from pathlib import Path

import httpx
import pytest
from small_runs import SMALL_CONTROL, Runs
from waiting import finish

pytestmark = pytest.mark.integration


@pytest.mark.slow
def test_an_evaluation_of_a_control_run_agrees_with_training(
    tmp_path: Path, prefect_api: str, ray_env: dict[str, str]
) -> None:
    runs = Runs(tmp_path).served_by(prefect_api, **ray_env)
    words = (*SMALL_CONTROL, "iterations=1", "evaluation.num_episodes=6", "rollout.num_workers=1")
    trained = runs.start(*words, f"run_root={runs.root}", "run_id=arm", flow="ppo")
    output = finish(trained)
    assert trained.returncode == 0, output[-4000:]
    [after] = [record for record in runs.metrics("arm") if record["iteration"] == 1 and "eval/return" in record]
    evaluated = runs.start(f"policy={runs.root}/arm", "run_id=again", flow="evaluate")
    output = finish(evaluated)
    assert evaluated.returncode == 0, output[-4000:]
    result = json.loads((runs.root / "again" / "evaluation.json").read_text())
    found = result["return"]
    assert (found["episodes"], found["mean_steps"]) == (6, 50)
    assert (found["mean"], found["low"]) == (after["eval/return"], after["eval/return_low"])
    assert f"return {found['mean']:.4g} [{found['low']:.4g}, {found['high']:.4g}] over 6 episodes" in output
    assert result["weights_digest"] == runs.summary("arm")["weights_digest"]
    wanted = {"event": {"name": ["embodyflow.nodes.completed"]}}
    [event] = httpx.post(f"{prefect_api}/events/filter", json={"filter": wanted}).json()["events"]
    assert event["resource"]["prefect.resource.name"] == "iteration-1"
    assert [related["prefect.resource.role"] for related in event["related"]].count("task-run") == 1
    nodes = {each["node"]: each for each in event["payload"]["nodes"]}
    assert next(iter(nodes)) == "rollout" and list(nodes)[-1] == "train_actor_critic"
    assert nodes["rollout"]["seconds"] > 0 and nodes["rollout"]["metrics"]["rollout/num_steps"] > 0
