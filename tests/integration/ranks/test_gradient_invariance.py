"""The way a global batch is split over ranks and into micro-batches does not affect the optimizer step."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from tensordict import TensorDict
from torch.distributed.tensor import DTensor
from trainers import SEED, demos_for, free_address, largest_gap, new_trainer, rows_for, spawn_ranks

from embodyflow.config import RunConfig
from embodyflow.training.fsdp_trainer import FSDPTrainer

pytestmark = pytest.mark.integration

NUM_ROWS = 15
CUTS = ("rows=null", "rows=7", "rows=2", "rows=1", "tokens=200")
"""Settings of ``trainer.micro_batch_*``; an episode of the tiny run has up to 80 tokens."""

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
CASES = tuple(itertools.product(TOLERANCE, CUTS))


def config_of(config: RunConfig, cut: str) -> RunConfig:
    unit, _, size = cut.partition("=")
    setting = {f"micro_batch_{unit}": None if size == "null" else int(size)}
    return config.model_copy(update={"trainer": config.trainer.model_copy(update=setting)})


def rows_of(config: RunConfig, dtype: torch.dtype) -> TensorDict:
    rows, draw = rows_for(config, NUM_ROWS), torch.Generator().manual_seed(0)
    decided = rows["loss_mask"].any(-1)
    if config.critic.level == "action":
        decided = rows["loss_mask"].unflatten(-1, (config.policy.chunk_size, -1)).any(-1)
    rows["values"] = torch.rand(decided.shape, generator=draw) * decided
    rows["returns"] = torch.rand(decided.shape, generator=draw) * decided
    return rows.apply(lambda column: column.to(dtype) if column.is_floating_point() else column)


def step_once(rank: int, config: RunConfig, addresses: list[str], world_size: int, folder: Path) -> None:
    """Run on one rank: from the same start, step policy, critic and both for each cut, and save the weights."""
    for (dtype, cut), address in zip(CASES, addresses, strict=True):
        torch.set_default_dtype(dtype)
        trainer = FSDPTrainer(config_of(config, cut), rank, world_size)
        trainer.connect(address)
        start, rows = weights_of(trainer) | {"controller.kl_coef": np.array([0.1])}, rows_of(config, dtype)
        first, end = (NUM_ROWS * each // world_size for each in (rank, rank + 1))
        for step in (trainer.step, trainer.step_critic, trainer.step_both):
            step(rows[first:end], positions=np.arange(first, end), total_rows=NUM_ROWS, seed=0)
        stepped = weights_of(trainer) | {"controller.kl_coef": np.array([trainer.kl_coef])}
        if (dtype, cut) == CASES[0]:
            assert_restored(trainer, rows[first:end], positions=np.arange(first, end), folder=folder / f"{world_size}")
        trainer.close()
        if rank == 0:
            save_file(start, folder / f"{dtype}-start.safetensors")
            save_file(stepped, folder / f"{dtype}-{world_size}-{cut}.safetensors")


def assert_restored(trainer: FSDPTrainer, rows: TensorDict, positions: np.ndarray, folder: Path) -> None:
    """Take a step after a checkpoint and check that loading it restores the KL coefficient."""
    coef = trainer.kl_coef
    trainer.save(str(folder))
    trainer.step(rows, positions=positions, total_rows=NUM_ROWS, seed=0)
    assert trainer.kl_coef != coef
    trainer.load(str(folder))
    assert trainer.kl_coef == coef


def weights_of(trainer: FSDPTrainer) -> dict[str, np.ndarray]:
    assert trainer.critic is not None
    models = {"policy": trainer.policy.model, "critic": trainer.critic.model}
    return {
        f"{name}.{key}": (value.full_tensor() if isinstance(value, DTensor) else value).detach().numpy().copy()
        for name, model in models.items()
        for key, value in model.named_parameters()
    }


def distance(left: dict[str, np.ndarray], right: dict[str, np.ndarray], model: str) -> float:
    """Return the norm of the difference relative to the norm of ``right``, over all parameters of a model."""
    a, b = (np.concatenate([w[name].ravel() for name in sorted(w) if name.startswith(model)]) for w in (left, right))
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@pytest.mark.parametrize("critic", [(), ("critic.features=policy", "critic.level=action")])
def test_parameters_after_a_step_do_not_depend_on_the_cut(critic: tuple[str, ...], tiny_config, tmp_path: Path) -> None:
    config = tiny_config(
        *critic,
        *("algorithm.advantage=gae", "algorithm.entropy_coef=0.01"),
        *("algorithm.kl.coef=0.1", "algorithm.kl.target=0.005", "algorithm.kl.horizon=100"),
    )
    for world_size in (1, 2):
        addresses = [free_address() for _ in CASES]
        spawn_ranks(step_once, config, addresses, world_size, tmp_path, num_ranks=world_size)
    for dtype, model in itertools.product(TOLERANCE, ("policy", "critic", "controller")):
        start, whole = (load_file(tmp_path / f"{dtype}-{name}.safetensors") for name in ("start", "1-rows=null"))
        moved = distance(whole, start, model)
        gaps = {
            (world_size, cut): distance(load_file(tmp_path / f"{dtype}-{world_size}-{cut}.safetensors"), whole, model)
            for world_size, cut in itertools.product((1, 2), CUTS)
        }
        print(dtype, model, f"moved {moved:.1e}", {key: f"{gap:.1e}" for key, gap in gaps.items()})
        assert moved > 1e-4
        assert max(gaps.values()) <= TOLERANCE[dtype]


def train_normalised(rank: int, config: RunConfig, addresses: dict[str, str], num_ranks: int, folder: str) -> None:
    """Train twice on this rank's rows of each layout; save each rank's statistics and the policy's weights."""
    for name, address in addresses.items():
        trainer = FSDPTrainer(config, rank, num_ranks)
        trainer.connect(address)
        rows, first = rows_for(config, 6), LAYOUTS[name] if num_ranks == 2 else 6
        mine = slice(first) if rank == 0 else slice(first, None)
        for iteration in (1, 2):
            trainer.step(rows[mine], positions=np.arange(6)[mine], total_rows=6, seed=iteration, iteration=iteration)
        statistics = {key: value.numpy() for key, value in trainer.policy.model.named_buffers() if "normalize" in key}
        save_file(statistics, f"{folder}/{num_ranks}-{name}-rank{rank}.safetensors")
        trainer.save_weights_file(f"{folder}/{num_ranks}-{name}.safetensors")
        trainer.close()


def test_ranks_agree_on_running_statistics_bit_for_bit(tiny_config, tmp_path: Path) -> None:
    config = tiny_config("trainer.num_minibatches=3", "trainer.epochs=2", "policy.normalize_observations=true")
    for num_ranks, names in ((1, ["even"]), (2, list(LAYOUTS))):
        addresses = {name: free_address() for name in names}
        spawn_ranks(train_normalised, config, addresses, num_ranks, str(tmp_path), num_ranks=num_ranks)
    whole = load_file(tmp_path / "1-even-rank0.safetensors")
    rows = rows_for(config, 6)
    states = rows["state"][rows["loss_mask"].any(-1)].double()
    assert whole["embed.normalize.count"].item() == 2 * len(states)
    np.testing.assert_allclose(whole["embed.normalize.mean"], states.mean(0), rtol=0, atol=1e-12)
    for name in LAYOUTS:
        left, right = (load_file(tmp_path / f"2-{name}-rank{rank}.safetensors") for rank in (0, 1))
        for key, value in whole.items():
            np.testing.assert_array_equal(left[key], right[key])
            np.testing.assert_allclose(left[key], value, rtol=1e-12, atol=1e-12)
        weights = (load_file(tmp_path / f"{file}.safetensors") for file in (f"2-{name}", "1-even"))
        assert largest_gap(*weights) <= 1e-5


# Number of rows on the first of two ranks. With "uneven" a rank has no rows in some mini-batch, with the last in any.
LAYOUTS = {"even": 3, "uneven": 1, "one rank without rows": 6}


def train_every_layout(rank: int, config: RunConfig, address: str, folder: str) -> None:
    """Run on one of two ranks: train from the same start in each layout, then fit, and save the weights of each."""
    trainer = FSDPTrainer(config, rank, 2)
    trainer.connect(address)
    rows = rows_for(config, 6)
    for name, first in LAYOUTS.items():
        trainer.load_weights_file(f"{folder}/start.safetensors")
        mine = slice(first) if rank == 0 else slice(first, None)
        trainer.step(rows[mine], positions=np.arange(6)[mine], total_rows=6, seed=SEED)
        trainer.save_weights_file(f"{folder}/{name}.safetensors")
    trainer.load_weights_file(f"{folder}/start.safetensors")
    trainer.fit(demos_for(config), seed=SEED)
    trainer.save_weights_file(f"{folder}/fit.safetensors")


def test_two_ranks_train_as_one_for_any_layout_of_rows(tiny_config, tmp_path: Path) -> None:
    config = tiny_config("trainer.num_minibatches=3", "trainer.micro_batch_rows=1", "trainer.epochs=2")
    trainer = new_trainer(config)
    save_file(start := trainer.weights(), tmp_path / "start.safetensors")
    trainer.step(rows_for(config, 6), positions=np.arange(6), total_rows=6, seed=SEED)
    stepped = trainer.weights()
    trainer.load_weights_file(str(tmp_path / "start.safetensors"))
    assert largest_gap(trainer.weights(), start) == 0
    trainer.fit(demos_for(config), seed=SEED)
    expected = dict.fromkeys(LAYOUTS, stepped) | {"fit": trainer.weights()}
    trainer.close()

    spawn_ranks(train_every_layout, config, free_address(), str(tmp_path), num_ranks=2)
    gaps = {name: largest_gap(load_file(tmp_path / f"{name}.safetensors"), one) for name, one in expected.items()}
    print(gaps)
    assert max(gaps.values()) <= 1e-5
    assert min(largest_gap(one, start) for one in expected.values()) > 1e-3
