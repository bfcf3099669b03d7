"""Tensor parallelism of a language model: steps, weights and checkpoints match those of an unsplit model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from language_jobs import language_config, rows_to_train_on
from safetensors.numpy import load_file, save_file
from torch.distributed.tensor import DTensor
from trainers import assert_same_in_parts, free_address, spawn_ranks

from embodyflow.config.language import LanguageConfig
from embodyflow.data.batches import to_batch
from embodyflow.rollouts.language.language_rollout import LanguageRollout
from embodyflow.training.language_trainer import LanguageTrainer
from embodyflow.types import Batch

pytestmark = pytest.mark.integration
SLOW = (pytest.mark.slow, pytest.mark.timeout(900))

CASES = {
    "qwen3 with a critic": ("policy.scratch.model_type=qwen3", "algorithm.advantage=gae", "+algorithm.kl.coef=0.1"),
    "qwen2 untied": ("policy.scratch.model_type=qwen2", "policy.scratch.tie_word_embeddings=false"),
    "llama with adapters": (
        *("policy.scratch.model_type=llama", "trainer.lora.rank=4", "trainer.activation_checkpointing=true"),
    ),
    "bfloat16": (
        *("trainer.precision=bfloat16", "trainer.parity_tolerance=0.1", "rollout.probe_tolerance=0.1"),
        "trainer.activation_checkpointing=true",
    ),
}
QUICK = ("qwen3 with a critic", "llama with adapters")
# Tolerances against one rank: for weights relative to their norm, and for log-probs. A split matrix product sums in
# another order, which changes it by 1e-7 in float32, and AdamW's first steps are the signs of gradients, of which some
# are almost zero. In bfloat16 each part of a product is rounded separately.
TOLERANCE = dict.fromkeys(CASES, (1e-6, 1e-5)) | {"bfloat16": (1e-2, 0.05)}
WHOLE = (1, 1)

Arrays = dict[str, np.ndarray]
Layout = tuple[int, int]
"""Number of parts of a batch, and number of ranks that split the model."""


def name_of(case: str, layout: Layout) -> str:
    return f"{case}-{layout[0]}x{layout[1]}"


def config_of(case: str, layout: Layout) -> LanguageConfig:
    return language_config(
        *(f"trainer.num_ranks={layout[0] * layout[1]}", f"trainer.tensor_parallel_size={layout[1]}"),
        *("rollout.num_groups=4", "trainer.micro_batch_tokens=60", "trainer.num_minibatches=2"),
        *("algorithm.entropy_coef=0.01", "warm_start.steps=2", *CASES[case]),
    )


def train(rank: int, layout: Layout, addresses: dict[str, str], folder: Path, rows: Batch, demos: Batch) -> None:
    """Run on one rank: train each case, continue from the one-rank checkpoint, fit, and save weights at each stage.

    Args:
        rank: Rank of this process.
        layout: Layout of the ranks.
        addresses: Address of the process group by case.
        folder: Folder for checkpoints and weights.
        rows: Rows of the whole batch.
        demos: Demonstrations for the fit.
    """
    part = rank // layout[1]
    mine = np.arange(len(rows) * part // layout[0], len(rows) * (part + 1) // layout[0])
    steps = {"positions": mine, "total_rows": len(rows)}
    for case, address in addresses.items():
        trainer = LanguageTrainer(config_of(case, layout), rank, layout[0] * layout[1])
        trainer.connect(address)
        saved: Arrays = {"log_probs/first": trainer.log_probs(rows, reference=False).numpy()}
        saved |= named("start", trainer)
        trainer.save(str(folder / f"{name_of(case, layout)}-start"))
        norms = [trainer.step(rows[mine], **steps, seed=seed)["train/grad_norm"].value for seed in (1, 2)]
        if trainer.critic is not None:
            norms.append(trainer.step_critic(rows[mine], **steps, seed=3)["critic/grad_norm"].value)
        saved |= named("stepped", trainer)
        assert_same_in_parts(trainer)
        trainer.save(str(folder / name_of(case, layout)), whole=False)
        trainer.load_reference(str(folder / f"{name_of(case, WHOLE)}-start"))
        trainer.load(str(folder / name_of(case, WHOLE)))
        saved |= named("loaded", trainer)
        saved["log_probs/reference"] = trainer.log_probs(rows, reference=True).numpy()
        norms.append(trainer.step(rows[mine], **steps, seed=4)["train/grad_norm"].value)
        saved |= named("resumed", trainer)
        trainer.fit(demos, seed=5)
        saved |= named("fitted", trainer) | {"norms": np.array(norms)}
        assert_siblings_agree(trainer)
        if rank == 0:
            save_file(saved, folder / f"{name_of(case, layout)}.safetensors")
        trainer.close()


def named(stage: str, trainer: LanguageTrainer) -> Arrays:
    """Return the full weights of policy and critic, with the stage in their names."""
    arrays = {f"{stage}/policy/{name}": array for name, array in trainer.weights().items()}
    if trainer.critic is not None:
        arrays |= {f"{stage}/critic/{name}": whole(value) for name, value in trainer.critic.model.named_parameters()}
    return arrays


def whole(value: torch.Tensor) -> np.ndarray:
    return (value.full_tensor() if isinstance(value, DTensor) else value).detach().numpy().copy()


def assert_siblings_agree(trainer: LanguageTrainer) -> None:
    """Check that ranks that share one copy of a model have bit-identical replicated weights."""
    mesh, parameters = trainer._mesh.tensor, list(trainer.policy.model.parameters())
    parts = [each for each in parameters if isinstance(each, DTensor) and each.device_mesh.ndim == 2]
    if mesh.size() == 1:
        return
    assert len(parts) == len(parameters)
    shared = [each.to_local() for each in parts if each.placements[1].is_replicate()]
    assert len(parts) - len(shared) >= 14  # seven matrices in each of two layers
    hashes: list[Any] = [None] * mesh.size()
    mine = [torch.hash_tensor(each).item() for each in shared if each.numel()]
    dist.all_gather_object(hashes, mine, group=mesh.get_group())
    assert all(each == mine for each in hashes)


def distance(left: Arrays, right: Arrays, prefix: str) -> float:
    """Return the norm of the difference relative to the norm of ``right``, over all arrays with the prefix."""
    names = [name for name in right if name.startswith(prefix)]
    if not names:
        return 0.0
    a, b = (np.concatenate([arrays[name].ravel() for name in names]) for arrays in (left, right))
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@pytest.mark.parametrize(
    ("layout", "cases"),
    [
        ((1, 2), QUICK),
        pytest.param((1, 2), tuple(case for case in CASES if case not in QUICK), marks=SLOW),
        pytest.param((2, 2), tuple(CASES), marks=SLOW),
    ],
    ids=str,
)
def test_a_split_model_trains_like_an_unsplit_one(layout: Layout, cases: tuple[str, ...], tmp_path: Path) -> None:
    config = config_of("qwen3 with a critic", WHOLE)
    trainer, rollout = LanguageTrainer(config, 0, 1), LanguageRollout(config, 0, 1)
    trainer.connect(free_address())
    rows, demos = rows_to_train_on(config, trainer), to_batch(rollout.demonstrate())
    decided = rows["loss_mask"].any(-1)
    rows["values"], rows["returns"] = 0.1 * decided, 0.5 * decided
    trainer.close()
    rollout.close()
    for each in (WHOLE, layout):
        given = (each, {case: free_address() for case in cases}, tmp_path, rows, demos)
        train(0, *given) if each == WHOLE else spawn_ranks(train, *given, num_ranks=each[0] * each[1])
    for case in cases:
        tolerance, log_prob_tolerance = TOLERANCE[case]
        one, split = (load_file(tmp_path / f"{name_of(case, each)}.safetensors") for each in (WHOLE, layout))
        assert split.keys() == one.keys()
        gaps = {name: float(np.abs(split[name] - one[name]).max()) for name in one if name.startswith("log_probs/")}
        stages = [f"{stage}/{model}" for stage in ("stepped", "resumed", "fitted") for model in ("policy", "critic")]
        distances = {stage: distance(split, one, stage) for stage in stages}
        norms = np.abs(split["norms"] / one["norms"] - 1).max()
        print(case, f"norms {norms:.1e}", {key: f"{gap:.1e}" for key, gap in (gaps | distances).items()})
        start = {name.replace("start/", "stepped/"): one[name] for name in one if name.startswith("start/")}
        assert distance(start, one, "stepped/") > 1e-3
        assert max(gaps.values()) <= log_prob_tolerance
        assert max(distances.values()) <= tolerance
        assert norms <= tolerance
        assert distance(split, one, "loaded/") == 0
        trainer = LanguageTrainer(config_of(case, WHOLE), 0, 1)
        trainer.connect(free_address())
        trainer.load_reference(str(tmp_path / f"{name_of(case, layout)}-start"))
        trainer.load(str(tmp_path / name_of(case, layout)))
        assert distance(named("stepped", trainer), split, "stepped/") == 0
        trainer.close()
