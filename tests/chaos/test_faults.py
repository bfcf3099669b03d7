"""Whatever dies, the run ends as if nothing had: the same weights, metrics and ledger, to the bit."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from faulty_nodes import NODES
from small_runs import SMALL, Runs

from embodyflow.ledger import Ledger

pytestmark = pytest.mark.integration

HERE = Path(__file__).parent
WORDS = ("iterations=3", "seed=7", "pipeline.custom_fn=faulty_nodes:graph", "cluster.node_timeout=20")
PARTS = ("rollout/0", "rollout/1", "trainer/0", "buffer", "driver", "exception")


def fault(node: str, part: str, iteration: int = 2, signal: str = "SIGKILL", **more: Any) -> dict[str, Any]:
    return {"iteration": iteration, "node": node, "part": part, "signal": signal, **more}


class Disturbed:
    """Runs of the default job in which a plan has parts die."""

    def __init__(self, runs: Runs, plans: Path) -> None:
        self.runs, self._plans = runs, plans

    def run(self, run_id: str, *faults: dict[str, Any], words: tuple[str, ...] = ()) -> str:
        """Run it, and resume it as often as its driver dies; return all that was printed."""
        plan = self._plans / f"{run_id}.json"
        plan.write_text(json.dumps(faults))
        self.runs.env |= {"EMBODYFLOW_FAULTS": str(plan)}
        process = self.runs.start(*SMALL, *WORDS, *words, f"run_root={self.runs.root}", f"run_id={run_id}")
        output, _ = process.communicate(timeout=280)
        while process.returncode == -9:
            self.runs.assert_nothing_runs(seconds=30)
            process = self.runs.start(f"resume={run_id}", f"run_root={self.runs.root}")
            more, _ = process.communicate(timeout=280)
            output += more
        assert process.returncode == 0, output[-6000:]
        happened = [index for index in range(len(faults)) if plan.with_name(f"{plan.name}.{index}").exists()]
        assert len(happened) == len(faults), f"only faults {happened} happened"
        return output

    def outcome(self, run_id: str) -> tuple[Any, ...]:
        """Return all that a disturbance must not change."""
        ledger = Ledger(self.runs.root / run_id / "ledger.jsonl").digest()
        return self.runs.summary(run_id)["weights_digest"], ledger, self.runs.metrics(run_id)


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory: pytest.TempPathFactory, prefect_api: str) -> Disturbed:
    folder = tmp_path_factory.mktemp("chaos")
    return Disturbed(Runs(folder).served_by(prefect_api, PYTHONPATH=str(HERE)), folder)


@pytest.fixture(scope="module")
def undisturbed(disturbed: Disturbed) -> tuple[Any, ...]:
    disturbed.run("undisturbed")
    outcome = disturbed.outcome("undisturbed")
    assert len({record.get("weights_digest") for record in outcome[2]}) > 2, "the weights never changed"
    return outcome


def test_a_run_in_which_every_part_dies_once(disturbed: Disturbed, undisturbed: tuple[Any, ...]) -> None:
    output = disturbed.run(
        "everything",
        fault("rollout", "rollout/0", iteration=1, delay=0.05),
        fault("train_actor", "trainer/0", iteration=1, delay=0.01),
        fault("old_log_prob", "buffer", iteration=2),
        fault("reward", "rollout/0", iteration=2),
        fault("advantage", "driver", iteration=3),
    )
    assert "rollout was done before: 8 rows" in output or "rollout was done before: 16 rows" in output
    assert disturbed.outcome("everything") == undisturbed
    time.sleep(1)
    disturbed.runs.assert_nothing_runs(seconds=10)


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("node", NODES)
def test_a_part_that_dies_at_a_node(disturbed: Disturbed, undisturbed: tuple[Any, ...], node: str, part: str) -> None:
    run_id = f"{node}-{part.replace('/', '-')}"
    disturbed.run(run_id, fault(node, part))
    assert disturbed.outcome(run_id) == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("part", ["rollout/0", "trainer/0"])
@pytest.mark.parametrize("node", ["rollout", "reward", "train_actor"])
def test_a_part_that_stops_answering(disturbed: Disturbed, undisturbed: tuple[Any, ...], node: str, part: str) -> None:
    run_id = f"{node}-{part.replace('/', '-')}-stopped"
    disturbed.run(run_id, fault(node, part, signal="SIGSTOP"))
    assert disturbed.outcome(run_id) == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_trainer_rank_among_others_that_dies(disturbed: Disturbed, rank: int) -> None:
    words = ("trainer.num_ranks=2",)
    disturbed.run(f"two-ranks-{rank}-undisturbed", words=words)
    disturbed.run(f"two-ranks-{rank}", fault("train_actor", f"trainer/{rank}", delay=0.01), words=words)
    assert disturbed.outcome(f"two-ranks-{rank}") == disturbed.outcome(f"two-ranks-{rank}-undisturbed")
