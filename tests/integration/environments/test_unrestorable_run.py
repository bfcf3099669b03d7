"""A run in an environment that its seed does not restore: refused, or allowed and named in every report."""

import json
from pathlib import Path

import pytest
from small_runs import Runs
from waiting import finish

from embodyflow.cli.run_folders.ledger import show_ledger
from embodyflow.record.ledger import Ledger

pytestmark = pytest.mark.integration

NORMALIZE = "gymnasium.wrappers:NormalizeObservation"
WORDS = (
    *("env.id=Pendulum-v1", "env.tasks=[swing up]", "env.max_steps=20", "env.adapter.success_reward=-0.5"),
    *(f"env.adapter.wrappers=[{NORMALIZE}]", "policy.state_dim=null", "policy.action_dim=null", "warm_start=null"),
    *("iterations=1", "filter.drop_uniform=false", "evaluation.num_goals=4", "trainer.num_minibatches=1"),
)


@pytest.mark.slow
def test_it_is_refused_unless_allowed_and_then_named_in_every_report(
    tmp_path: Path, prefect_api: str, ray_env: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    runs = Runs(tmp_path).served_by(prefect_api, **ray_env)
    refused = runs.start("experiment=embodied", *WORDS, f"run_root={runs.root}", "run_id=refused")
    output = finish(refused, 120)
    assert refused.returncode == 2 and not (runs.root / "refused").exists()
    assert output.startswith(f"env.adapter.wrappers={NORMALIZE}: reset(seed=0) does not restore goal 0 of task 'swing")

    output = runs.run("allowed", *WORDS, "env.allow_unrestorable=true")
    line = f"swing up: reset(seed=…) does not restore an episode: env.adapter.wrappers={NORMALIZE}: "
    assert f"{line}after another episode the observation 'state' after the reset differs; groups may begin" in output
    assert " unrestorable=1\n" in output
    [named] = runs.summary("allowed")["unrestorable"]  # type: ignore[misc]
    assert named.startswith(line)
    records = runs.records("allowed")
    assert len(records) == 3 and all(record["env/unrestorable_tasks"] == 1 for record in records)
    folder = runs.root / "allowed"
    commits = [each.facts for each in Ledger(folder / "ledger.jsonl").entries if each.kind == "commit"]
    assert [each["env/unrestorable_tasks"] for each in commits] == [1, 1]
    assert show_ledger(folder) == 0 and line in capsys.readouterr().out
    assert json.loads((folder / "unrestorable.json").read_text()).keys() == {"swing up"}
