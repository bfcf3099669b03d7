"""Complete language runs with real flows, Ray and model, at the smallest size that still trains."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from language_jobs import language_config, rows_to_train_on
from safetensors.numpy import load_file, save_file
from small_runs import SMALL_LANGUAGE, Runs, assert_trained, training_records
from trainers import free_address, largest_gap, spawn_ranks
from waiting import finish

from embodyflow.config.language import LanguageConfig
from embodyflow.data.batches import to_batch
from embodyflow.rollouts.language.language_rollout import LanguageRollout
from embodyflow.training.language_trainer import LanguageTrainer
from embodyflow.types import Batch

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, prefect_api: str) -> Runs:
    return Runs(tmp_path_factory.mktemp("math"), prefect_api)


@dataclass(frozen=True)
class Begun:
    """An exported policy to begin with."""

    policy: Path

    @property
    def words(self) -> tuple[str, ...]:
        """Words that load it in place of a warm start."""
        return ("policy.scratch=null", f"policy.path={self.policy}", "warm_start=null")


def run(runs: Runs, run_id: str, *words: str) -> str:
    process = runs.start(*SMALL_LANGUAGE, f"run_root={runs.root}", f"run_id={run_id}", *words)
    output = finish(process)
    assert process.returncode == 0, output[-4000:]
    return output


@pytest.mark.core
def test_a_run_leaves_its_records_and_no_process(runs: Runs) -> None:
    until = "warm_start.until={success:1.0,max_steps:300,every:60,num_held_out:8}"  # success that it cannot reach
    output = run(runs, "first", "iterations=2", "trainer.num_ranks=2", "warm_start.steps=200", until)
    assert "warm_start.until.success=1: not reached" in output
    [begun] = [record for record in runs.metrics("first") if "sft/reached" in record]
    assert (begun["iteration"], begun["sft/steps"], begun["sft/reached"]) == (0, 300, 0)
    summary = json.loads((runs.root / "first" / "summary.json").read_text())
    assert (summary["warm_start_steps"], summary["warm_start_reached"]) == (300, False)
    assert summary["warm_start_success_rate"] == begun["sft/success_rate"]
    assert any(line.startswith("success_rate before=") and "goals=16" in line for line in output.splitlines())
    records = [record for record in runs.metrics("first") if "train/optimizer_steps" in record]
    assert len(records) == 2 and all(record["train/optimizer_steps"] == 1 for record in records)
    assert_trained(records)
    assert all(record["parity/log_prob_gap"] < 1e-4 for record in records)
    assert all(0 <= record["balance/token_imbalance"] < 0.05 for record in records)  # 16 groups on two ranks
    folder = runs.root / "first"
    examples = [json.loads(line) for line in (folder / "examples" / "iteration-000002.jsonl").read_text().splitlines()]
    assert [row["mode"] for row in examples] == ["greedy"] * 3 + ["sampled"] * 3
    assert all("+" in row["prompt"] and row["response"] and row["ground_truth"].isdigit() for row in examples)
    assert (folder / "policy" / "tokenizer.json").is_file()
    runs.assert_nothing_runs(seconds=10)


@pytest.mark.slow
def test_two_runs_with_newer_weights_in_their_responses_are_the_same(runs: Runs) -> None:
    words = ("rollout.max_staleness=2", "rollout.interrupt.every=4", "algorithm.old_log_probs=proximal")
    run(runs, "one", "iterations=4", *words)
    run(runs, "other", "iterations=4", *words)
    runs.assert_same_training("one", "other")
    records = training_records(runs.metrics("one"))
    assert_trained(records)
    assert [record.get("policy/staleness_max") for record in records] == [0, 1, 2, 2]
    assert all(0 < record["policy/staleness_mean"] < 1 for record in records[1:])
    assert all(record["parity/log_prob_gap"] < 1e-4 for record in records), "tokens of the newest version are compared"


@pytest.mark.slow
def test_a_resumed_run_gives_the_same_result(runs: Runs) -> None:
    run(runs, "straight", "iterations=3")
    run(runs, "resumed", "iterations=2")
    runs.resume("resumed", f"run_root={runs.root}", "iterations=3")
    runs.assert_same_training("resumed", "straight")


@pytest.fixture(scope="module")
def whole(runs: Runs) -> Begun:
    """Train on one rank from the policy of a run that warm-started."""
    run(runs, "begun", "iterations=1")
    begun = Begun(runs.root / "begun" / "policy")
    run(runs, "whole", "iterations=2", *begun.words)
    return begun


@pytest.mark.slow
def test_two_trainer_ranks_agree_with_one(runs: Runs, whole: Begun) -> None:
    run(runs, "two-ranks", "iterations=2", "trainer.num_ranks=2", *whole.words)
    assert_near(runs, "two-ranks", whole)


@pytest.mark.slow
def test_a_tensor_parallel_model_agrees_with_a_whole_one(runs: Runs, whole: Begun) -> None:
    run(runs, "split", "iterations=2", "trainer.num_ranks=2", "trainer.tensor_parallel_size=2", *whole.words)
    assert_near(runs, "split", whole)


def assert_near(runs: Runs, other: str, begun: Begun) -> None:
    """Compare a run on other ranks with that on one: the same rows, steps and weights, up to the order of sums.

    Both begin with the same weights and take few steps, because each step multiplies what rounding began. Warm starts
    of hundreds of steps end far apart, as two of one rank do whose weights differ by 1e-7; of those,
    ``test_language_ranks.py`` compares the steps in float64.
    """
    records = [training_records(runs.metrics(name)) for name in (other, "whole")]
    assert_trained(records[1])
    for mine, its in zip(*records, strict=True):
        assert mine["rollout/reward"] == its["rollout/reward"]
        for name in ("train/grad_norm", "policy/entropy"):
            assert mine[name] == pytest.approx(its[name], rel=1e-4)
    start = load_file(begun.policy / "model.safetensors")
    found, wanted = (load_file(runs.root / name / "policy" / "model.safetensors") for name in (other, "whole"))
    assert found.keys() == wanted.keys() == start.keys()
    assert relative_gap(start, wanted) > 1e-4
    assert relative_gap(found, wanted) < 1e-5


def relative_gap(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> float:
    """Return the norm of the difference relative to the norm of the right one, over all weights."""
    a, b = (np.concatenate([weights[name].ravel() for name in sorted(weights)]) for weights in (left, right))
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


CASES = {
    "all weights": (),
    "adapters": ("trainer.lora.rank=4",),
    "adapters in bfloat16": (
        *("trainer.lora.rank=4", "trainer.precision=bfloat16", "trainer.activation_checkpointing=true"),
        *("trainer.parity_tolerance=0.1", "rollout.probe_tolerance=0.1"),
    ),
}
# Tolerances of the weights and of the probe's log-probs. Two ranks pack rows differently, which changes bfloat16
# rounding, and AdamW turns the sign of an almost-zero gradient into a full step.
TOLERANCE = dict.fromkeys(CASES, (1e-5, 1e-4)) | {"adapters in bfloat16": (1e-2, 0.1)}


def config_of(case: str) -> LanguageConfig:
    return language_config(
        *("rollout.num_groups=4", "trainer.micro_batch_tokens=60", "trainer.num_minibatches=2", "trainer.epochs=2"),
        *("+algorithm.kl.coef=0.1", "algorithm.entropy_coef=0.01", "warm_start.steps=2", *CASES[case]),
    )


def train(rank: int, world_size: int, addresses: list[str], folder: Path, rows: Batch, demos: Batch) -> None:
    """For every case and as one rank: fit, train on a part of the rows, restore, and save weights and probe."""
    mine = slice(None) if world_size == 1 else (slice(5), slice(5, None))[rank]
    part, positions = rows[mine], np.arange(len(rows))[mine]
    for case, address in zip(CASES, addresses, strict=True):
        trainer = LanguageTrainer(config_of(case), rank, world_size)
        trainer.connect(address)
        trainer.probe()
        trainer.fit(demos, seed=3)
        trainer.save(str(folder / f"{case}-{world_size}-start"))
        trainer.step(part, positions=positions, total_rows=len(rows), seed=1)
        trainer.save(str(folder / f"{case}-{world_size}"), whole=False)
        expected = trainer.weights()
        trainer.step(part, positions=positions, total_rows=len(rows), seed=2)
        trainer.load_reference(str(folder / f"{case}-{world_size}-start"))
        trainer.load(str(folder / f"{case}-{world_size}"))
        weights, probe = trainer.weights(), trainer.probe()
        if rank == 0:
            assert largest_gap(weights, expected) == 0
            save_file(weights | probe, folder / f"{case}-{world_size}.safetensors")
        trainer.close()


def test_two_ranks_train_as_one(tmp_path: Path) -> None:
    config = config_of("all weights")
    trainer, rollout = LanguageTrainer(config, 0, 1), LanguageRollout(config, 0, 1)
    trainer.connect(free_address())
    rows, demos, start = rows_to_train_on(config, trainer), to_batch(rollout.demonstrate()), trainer.weights()
    trainer.close()
    rollout.close()
    train(0, 1, [free_address() for _ in CASES], tmp_path, rows, demos)
    spawn_ranks(train, 2, [free_address() for _ in CASES], tmp_path, rows, demos, num_ranks=2)
    for case, (tolerance, probe_tolerance) in TOLERANCE.items():
        one, two = (load_file(tmp_path / f"{case}-{ranks}.safetensors") for ranks in (1, 2))
        probes = [each.pop("probe/log_probs") for each in (one, two)]
        assert largest_gap(one, start) > 5e-4
        assert largest_gap(two, one) <= tolerance
        assert np.abs(probes[0] - probes[1]).max() <= probe_tolerance
