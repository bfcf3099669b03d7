"""Complete runs of a ported ring of agents with real flows, Ray, environment and model."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from agent_jobs import agent_words
from small_runs import ROOT, Runs, assert_trained, training_records
from support_path import SUPPORT_PATH
from transformers import AutoModelForCausalLM
from waiting import finish

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]

WORDS = (
    *("policy=tiny_qwen", "policy.tokenizer=embodyflow.prompts.self_correct:build_tokenizer", "data=self_correct"),
    *("rollout.max_prompt_tokens=16", "rollout.max_response_tokens=110", "policy.scratch.max_position_embeddings=126"),
    *("rollout.agent.max_turns=2", "rollout.agent.max_turn_tokens=10", "rollout.agent.ring.trained_turns=all"),
    *("critic.epochs=1", "rollout.group_size=4", "evaluation.num_prompts=2", "cluster.start_timeout=300"),
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, prefect_api: str) -> Runs:
    return Runs(tmp_path_factory.mktemp("ring"), prefect_api)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project with ported workflows, whose environment pays for digits: with shared weights, and with own."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copytree(ROOT / "deployments", folder / "deployments")
    text = (ROOT / "examples" / "ring" / "workflow.yaml").read_text()
    text = text.replace("examples/ring/sum_check.py:SumCheck", "ring_jobs.py:Deadly")
    (folder / "marft.yaml").write_text(text)
    (folder / "own.yaml").write_text(with_own_actors(text))
    for workflow, experiment in (("marft", "ring"), ("own", "own_ring")):
        words = ("port", f"{workflow}.yaml", "--out", f"{experiment}.yaml", "--experiment", experiment)
        command = [sys.executable, "-m", "embodyflow.cli.main", *words]
        subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": SUPPORT_PATH}, check=True, timeout=300)
    return folder


def with_own_actors(text: str) -> str:
    """Return a workflow whose actors share nothing, and train one after the other."""
    content = yaml.safe_load(text)
    for node in content["nodes"]:
        if node["node_role"] == "ACTOR":
            node.pop("agent_options", None)
            if not node.get("only_forward_compute"):
                node["agent_options"] = {"train_cycle": 1}
    return str(yaml.safe_dump(content, sort_keys=False))


def run(runs: Runs, project: Path, run_id: str, experiment: str = "ring", **env: str) -> list[str]:
    """Run two iterations; return the last texts that the environment got, in order."""
    asked = runs.root.parent / f"asked-{run_id}"
    tiny = agent_words(f"experiment={experiment}", *WORDS)
    mine = [word for word in tiny if not word.startswith(("run_id=", "iterations=", "warm_start."))]
    words = [*mine, f"run_id={run_id}", "iterations=2", f"run_root={runs.root}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.ppo", *words],
        cwd=project,
        env=runs.env | {"PYTHONPATH": SUPPORT_PATH, "ASKED": str(asked), **env},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output = finish(process, 800)
    assert process.returncode == 0, output[-4000:]
    return asked.read_text().splitlines()


def test_a_ported_ring_trains_and_a_killed_rollout_worker_changes_nothing(runs: Runs, project: Path) -> None:
    asked = run(runs, project, "undisturbed")
    records = training_records(runs.records("undisturbed"))
    assert_trained(records)
    assert len(records) == 2
    for record in records:
        assert record["rollout/turns"] == record["rollout/contexts"] == 4
        assert record["rollout/reward_reasoner"] == record["rollout/reward_actor"] > 0
        assert record["parity/log_prob_gap"] < 1e-4 and record["critic/optimizer_steps"] > 0

    run(runs, project, "killed", KILL_AT=str(len(asked) // 2))
    assert (runs.root.parent / "asked-killed.killed").exists()
    runs.assert_same_training("killed", "undisturbed")


def test_agents_with_weights_of_their_own_train_in_turn_and_a_killed_worker_changes_nothing(
    runs: Runs, project: Path
) -> None:
    asked = run(runs, project, "own", "own_ring")
    records = training_records(runs.records("own"))
    assert_trained(records)
    first, second = records
    assert "train/grad_norm/actor" not in first and "train/grad_norm/reasoner" not in second
    assert first["policy/weights_digest/reasoner"] == second["policy/weights_digest/reasoner"]
    assert first["policy/weights_digest/actor"] != second["policy/weights_digest/actor"]
    for record in records:
        assert record["parity/log_prob_gap"] < 1e-4 and record["critic/optimizer_steps"] > 0
    for name in ("reasoner", "actor"):
        AutoModelForCausalLM.from_pretrained(runs.root / "own" / "policy" / name)

    run(runs, project, "own-killed", "own_ring", KILL_AT=str(len(asked) // 2))
    assert (runs.root.parent / "asked-own-killed.killed").exists()
    runs.assert_same_training("own-killed", "own")
