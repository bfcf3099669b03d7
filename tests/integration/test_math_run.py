"""A language job whole: real flows, real Ray, a real language model, at the smallest size that still trains."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from language_jobs import language_config, sampled
from safetensors.numpy import load_file, save_file
from small_runs import Runs
from trainers import free_address, largest_gap

from embodyflow.config.language import LanguageConfig
from embodyflow.engines.language_rollout import LanguageRollout
from embodyflow.engines.language_trainer import LanguageTrainer
from embodyflow.types import Batch

pytestmark = pytest.mark.integration

WORDS = [
    *("experiment=math", "policy.scratch.hidden_size=32", "policy.scratch.num_hidden_layers=1"),
    *("rollout.num_groups=16", "rollout.group_size=4", "warm_start.steps=100", "warm_start.num_demos=400"),
    *("evaluation.num_prompts=16", "evaluation.num_shown=3", "trainer.num_minibatches=1"),
    *("trainer.schedule.name=constant", "trainer.micro_batch_tokens=500", "filter.drop_uniform=false"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, prefect_api: str) -> Runs:
    return Runs(tmp_path_factory.mktemp("math"), prefect_api)


def run(runs: Runs, run_id: str, *words: str) -> str:
    process = runs.start(*WORDS, f"run_root={runs.root}", f"run_id={run_id}", *words)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output[-4000:]
    return output


def test_a_run_leaves_its_records_and_no_process(runs: Runs) -> None:
    output = run(runs, "first", "iterations=2", "trainer.num_ranks=2")
    assert any(line.startswith("success_rate before=") and "goals=16" in line for line in output.splitlines())
    records = [record for record in runs.metrics("first") if "train/optimizer_steps" in record]
    assert len(records) == 2 and all(record["train/optimizer_steps"] == 1 for record in records)
    assert all(record["parity/log_prob_gap"] < 1e-4 for record in records)
    assert all(0 <= record["balance/token_imbalance"] < 0.05 for record in records)  # of 16 groups on two ranks
    folder = runs.root / "first"
    examples = [json.loads(line) for line in (folder / "examples" / "iteration-000002.jsonl").read_text().splitlines()]
    assert [row["mode"] for row in examples] == ["greedy"] * 3 + ["sampled"] * 3
    assert all("+" in row["prompt"] and row["response"] and row["ground_truth"].isdigit() for row in examples)
    assert (folder / "policy" / "tokenizer.json").is_file()
    runs.assert_nothing_runs(seconds=10)


@pytest.mark.slow
def test_a_resumed_run_ends_like_an_uninterrupted_one(runs: Runs) -> None:
    run(runs, "straight", "iterations=3")
    run(runs, "resumed", "iterations=2")
    runs.resume("resumed", f"run_root={runs.root}", "iterations=3")
    assert runs.summary("resumed")["weights_digest"] == runs.summary("straight")["weights_digest"]
    straight, resumed = (runs.metrics(name) for name in ("straight", "resumed"))
    assert [r for r in resumed if "digests" in r] == [r for r in straight if "digests" in r]


@pytest.mark.slow
def test_responses_spread_over_two_ranks_teach_the_same(runs: Runs) -> None:
    run(runs, "one-rank", "iterations=3")
    run(runs, "two-ranks", "iterations=3", "trainer.num_ranks=2")
    one, two = (load_file(runs.root / name / "policy" / "model.safetensors") for name in ("one-rank", "two-ranks"))
    assert largest_gap(one, two) < 1e-4


def rows_to_train_on(config: LanguageConfig, trainer: LanguageTrainer) -> Batch:
    """Responses of different lengths with log-probs a little off the policy's."""
    rollout, rng = LanguageRollout(config, 0, 1), np.random.default_rng(0)
    rollout.update_weights(trainer.weights() | trainer.probe(), version=0)
    rows = sampled(rollout)
    rollout.close()
    mask = rows["loss_mask"]
    noise = torch.from_numpy(rng.standard_normal((2, *mask.shape)).astype(np.float32)) * mask
    rows["old_log_probs"], rows["ref_log_probs"] = rows["log_probs"] + 0.1 * noise
    rows["advantages"] = torch.from_numpy(rng.standard_normal((len(rows), 1, 1)).astype(np.float32)) * mask
    return rows


def train(rank: int, config: LanguageConfig, address: str, folder: str, rows: Batch) -> None:
    """As rank ``rank`` of two: train on a part of the rows, save the weights and the log-probs of the probe."""
    trainer = LanguageTrainer(config, rank, 2)
    trainer.connect(address)
    trainer.load_weights_file(f"{folder}/start.safetensors")
    first = 5
    mine = slice(first) if rank == 0 else slice(first, None)
    trainer.step(rows[mine], positions=np.arange(len(rows))[mine], total_rows=len(rows), seed=1)
    weights, probe = trainer.weights(), trainer.probe()
    if rank == 0:
        save_file(weights, f"{folder}/two.safetensors")
        save_file(probe, f"{folder}/probe.safetensors")
    trainer.close()


def test_two_ranks_train_as_one(tmp_path: Path) -> None:
    config = language_config(
        *("rollout.num_groups=4", "trainer.micro_batch_tokens=60", "trainer.num_minibatches=2", "trainer.epochs=2"),
        *("+algorithm.kl.coef=0.1", "algorithm.entropy_coef=0.01"),
    )
    trainer = LanguageTrainer(config, 0, 1)
    trainer.connect(free_address())
    save_file(start := trainer.weights(), tmp_path / "start.safetensors")
    rows = rows_to_train_on(config, trainer)
    trainer.step(rows, positions=np.arange(len(rows)), total_rows=len(rows), seed=1)
    one, probe = trainer.weights(), trainer.probe()
    trainer.close()
    mp.spawn(train, (config, free_address(), str(tmp_path), rows), nprocs=2)
    assert largest_gap(one, start) > 5e-4
    assert largest_gap(load_file(tmp_path / "two.safetensors"), one) <= 1e-5
    assert largest_gap(load_file(tmp_path / "probe.safetensors"), probe) <= 1e-4
