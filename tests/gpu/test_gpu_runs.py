"""Whole runs on a GPU, at the smallest size that still trains, and trainers of one rank compared with the CPU.

Run them by `pytest tests/gpu -m gpu`.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import SMALL, SMALL_CONTROL, SMALL_LANGUAGE, Runs
from trainers import SEED, demos_for, new_trainer, rows_for
from waiting import finish

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.integration,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]

BFLOAT16 = ("trainer.precision=bfloat16", "trainer.parity_tolerance=0.2")
RUNS: dict[str, tuple[str, Sequence[str]]] = {
    "embodied": ("grpo", SMALL),
    "embodied-ppo": ("ppo", (*SMALL, *BFLOAT16)),
    "language": ("grpo", SMALL_LANGUAGE),
    "language-lora": ("grpo", (*SMALL_LANGUAGE, *BFLOAT16, "trainer.lora.rank=4", "rollout.probe_tolerance=0.2")),
    "control": ("ppo", SMALL_CONTROL),
}


@pytest.mark.timeout(900)  # three runs
@pytest.mark.parametrize("name", RUNS)
def test_a_run_trains_and_resumes(name: str, tmp_path: Path, prefect_api: str) -> None:
    flow, words = RUNS[name]
    runs = Runs(tmp_path, prefect_api)
    words = (*words, "cluster=gpu", "rollout.num_workers=1", "trainer.schedule.name=constant", f"run_root={runs.root}")

    def run(run_id: str, iterations: int) -> None:
        process = runs.start(*words, f"run_id={run_id}", f"iterations={iterations}", flow=flow)
        output = finish(process)
        assert process.returncode == 0, output[-4000:]

    run(name, 2)
    runs.resume(name, f"run_root={runs.root}", "iterations=3", flow=flow)
    digests = [record["weights_digest"] for record in runs.records(name) if "weights_digest" in record]
    assert len(set(digests)) == len(digests) >= 3, "the weights never changed"
    assert (runs.root / name / "policy" / "model.safetensors").is_file()
    assert json.loads((runs.root / name / "summary.json").read_text())["iterations"] == 3
    run("straight", 3)
    assert runs.summary("straight")["weights_digest"] == runs.summary(name)["weights_digest"], "not bit-identical"
    runs.assert_nothing_runs(seconds=30)


@pytest.mark.parametrize("words", [(), BFLOAT16, ("trainer.lora.rank=2", *BFLOAT16)], ids=["float32", "bf16", "LoRA"])
def test_a_trainers_results_match_the_cpu(words: Sequence[str], tiny_config, tmp_path: Path) -> None:
    words = (*words, "+algorithm.kl.coef=0.1", "algorithm.entropy_coef=0.01", "trainer.micro_batch_rows=2")
    found = []
    for cluster in ("cluster=gpu", "cluster=local"):
        config = tiny_config(*words, cluster, "algorithm.advantage=gae")
        trainer = new_trainer(config)
        trainer.fit(demos_for(config), SEED)
        rows = rows_for(config, 4)
        decided = rows["loss_mask"].any(-1)
        rows["values"], rows["returns"] = trainer.values(rows), decided.float()
        trainer.save(str(tmp_path / config.cluster.device))
        how = {"positions": np.arange(4), "total_rows": 4, "seed": SEED}
        metrics = trainer.step_both(rows, **how)
        trainer.load(str(tmp_path / config.cluster.device))
        assert trainer.step_both(rows, **how)["train/grad_norm"].value == pytest.approx(
            metrics["train/grad_norm"].value, rel=1e-3
        )
        found.append({key: metric.value for key, metric in metrics.items()})
        trainer.close()
    assert found[0] == pytest.approx(found[1], rel=0.1 if BFLOAT16[0] in words else 1e-2, abs=1e-2)
