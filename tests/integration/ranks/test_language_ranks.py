"""Language models train alike on any layout of ranks, up to the rounding of float64.

In float32 a difference in the last bit of a step grows at every further step, as any small change of the weights does.
So a comparison after many steps would need a tolerance that hides mistakes.
"""

from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from language_jobs import language_config, rows_to_train_on
from safetensors.numpy import load_file, save_file
from trainers import free_address, spawn_ranks

from embodyflow.config.language import LanguageConfig
from embodyflow.data.batches import to_batch
from embodyflow.policies.base import Policy
from embodyflow.policies.language.causal_lm.policy_causal_lm import CausalLMPolicy
from embodyflow.rollouts.language.language_rollout import LanguageRollout
from embodyflow.training.language_trainer import LanguageTrainer
from embodyflow.types import Batch

pytestmark = pytest.mark.integration

LAYOUTS = {"whole": (1, 1), "two parts of the batch": (2, 1), "split model": (1, 2)}
"""Number of parts of a batch, and number of ranks that split the model."""

CASES = {
    "token_mean": ("+algorithm.kl.coef=0.1", "algorithm.entropy_coef=0.01"),
    "seq_mean_token_mean": ("algorithm.whiten=minibatch",),
    "seq_mean_token_sum": ("trainer.max_grad_norm=0.01",),
    "seq_mean_token_sum_norm": ("algorithm.old_log_probs=recorded",),
}
"""Settings by aggregation of the tokens' losses."""

STAGES = ("start", "fitted", "stepped", "norms")
NUM_FITTED, NUM_STEPS = 20, 3
TOLERANCE = 1e-12


class DoubleTrainer(LanguageTrainer):
    """A trainer in float64."""

    def _build_policy(self) -> Policy:
        policy = super()._build_policy()
        assert isinstance(policy, CausalLMPolicy)
        policy.model.double()
        for module in policy.model.modules():
            if type(module).__name__.endswith("RMSNorm"):
                module.forward = partial(normalise, module)  # transformers' own computes in float32
        return policy


def normalise(module: Any, inputs: torch.Tensor) -> torch.Tensor:
    variance = inputs.square().mean(-1, keepdim=True)
    scaled: torch.Tensor = module.weight * (inputs * torch.rsqrt(variance + module.variance_epsilon))
    return scaled


def config_of(case: str, layout: tuple[int, int]) -> LanguageConfig:
    return language_config(
        *(f"trainer.num_ranks={layout[0] * layout[1]}", f"trainer.tensor_parallel_size={layout[1]}"),
        *("rollout.num_groups=4", "trainer.micro_batch_tokens=60", "trainer.num_minibatches=2"),
        *(f"warm_start.steps={NUM_FITTED}", "warm_start.batch_size=5", "warm_start.num_demos=8"),
        *(f"algorithm.aggregation={case}", *CASES[case]),
    )


def train(rank: int, name: str, addresses: list[str], folder: Path, rows: Batch, demos: Batch) -> None:
    """Run on one rank: fit and train in every case; save the weights after each, and the norms of the gradients."""
    layout = LAYOUTS[name]
    mine = slice(None) if layout[0] == 1 else (slice(5), slice(5, None))[rank // layout[1]]
    where = {"positions": np.arange(len(rows))[mine], "total_rows": len(rows)}
    saved: dict[str, np.ndarray] = {}
    for case, address in zip(CASES, addresses, strict=True):
        trainer = DoubleTrainer(config_of(case, layout), rank, layout[0] * layout[1])
        trainer.connect(address)
        saved |= named(f"{case}/start", trainer)
        with patch.object(torch.Tensor, "float", torch.Tensor.double):  # keeps the logits in float64
            trainer.fit(demos, seed=3)
            saved |= named(f"{case}/fitted", trainer)
            steps = [trainer.step(rows[mine].clone(), **where, seed=seed) for seed in range(NUM_STEPS)]
        saved |= named(f"{case}/stepped", trainer)
        saved[f"{case}/norms"] = np.array([step["train/grad_norm"].value for step in steps])
        trainer.close()
    if rank == 0:
        save_file(saved, folder / f"{name}.safetensors")


def named(stage: str, trainer: LanguageTrainer) -> dict[str, np.ndarray]:
    return {f"{stage}/{name}": array.copy() for name, array in trainer.weights().items()}


def vector(arrays: dict[str, np.ndarray], prefix: str) -> np.ndarray:
    found = np.concatenate([arrays[name].ravel() for name in sorted(arrays) if name.startswith(prefix)])
    assert found.dtype == np.float64
    return found


def distance(left: np.ndarray, right: np.ndarray) -> float:
    return float(np.linalg.norm(left - right) / np.linalg.norm(right))


@pytest.mark.slow
def test_ranks_agree_with_one_up_to_the_rounding_of_float64(tmp_path: Path) -> None:
    config = config_of("token_mean", (1, 1))
    trainer, rollout = LanguageTrainer(config, 0, 1), LanguageRollout(config, 0, 1)
    trainer.connect(free_address())
    rows, demos = rows_to_train_on(config, trainer), to_batch(rollout.demonstrate())
    trainer.close()
    rollout.close()
    rows, demos = (
        each.apply(lambda column: column.double() if column.is_floating_point() else column) for each in (rows, demos)
    )
    for name, layout in LAYOUTS.items():
        addresses = [free_address() for _ in CASES]
        given = (name, addresses, tmp_path, rows, demos)
        train(0, *given) if layout == (1, 1) else spawn_ranks(train, *given, num_ranks=2)
    whole, *others = (load_file(tmp_path / f"{name}.safetensors") for name in LAYOUTS)
    for case in CASES:
        start, fitted, stepped = (vector(whole, f"{case}/{stage}/") for stage in ("start", "fitted", "stepped"))
        assert distance(start, fitted) > 1e-2 and distance(fitted, stepped) > 1e-4
        for other in others:
            gaps = [distance(vector(other, f"{case}/{name}"), vector(whole, f"{case}/{name}")) for name in STAGES]
            print(case, dict(zip(STAGES, gaps, strict=True)))
            assert gaps[0] == 0 and max(gaps) <= TOLERANCE
