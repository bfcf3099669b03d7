"""Trainers of one rank, with rows and demonstrations to train them on."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch.multiprocessing as mp
from server_ports import server_port
from tensordict import TensorDict

from embodyflow.config import RunConfig
from embodyflow.data.batches import to_batch
from embodyflow.data.parts import PartsDigest
from embodyflow.data.tables import digest_of
from embodyflow.nodes.engines import TrainerEngine
from embodyflow.policies.embodied.tiny_vla.processing_tiny_vla import TinyVLAProcessor
from embodyflow.training.fsdp_trainer import FSDPTrainer

SEED = 5
Weights = dict[str, np.ndarray]


def free_address() -> str:
    """Return an address at which no other process of the tests listens."""
    return f"127.0.0.1:{server_port()}"


def spawn_ranks(work: Callable[..., None], *args: Any, num_ranks: int) -> None:
    """Call ``work(rank, *args)`` in a process per rank.

    Raises:
        torch.multiprocessing.ProcessRaisedException: A rank failed; the message has its traceback.
    """
    mp.spawn(work_and_exit, (work, args), nprocs=num_ranks)


def work_and_exit(rank: int, work: Callable[..., None], args: tuple[Any, ...]) -> None:
    """Call ``work`` and exit the process at once, as runs do at their end.

    A normal interpreter shutdown can abort, because gloo's threads live on while anything refers to the process group
    (https://github.com/pytorch/pytorch/issues/190489).
    """
    work(rank, *args)
    os._exit(0)


def new_trainer(config: RunConfig) -> FSDPTrainer:
    trainer = FSDPTrainer(config, 0, 1)
    trainer.connect(free_address())
    return trainer


def rows_for(config: RunConfig, num_rows: int) -> TensorDict:
    """Return rows with episodes of different lengths and log-probs close to an untrained policy's."""
    rng, decisions, tokens = np.random.default_rng(0), config.num_decisions, config.policy.num_action_tokens
    shape = (num_rows, decisions, tokens)
    num_tokens = rng.integers(1, decisions * tokens, size=(num_rows, 1))
    mask = (np.arange(decisions * tokens) < num_tokens).reshape(shape)
    words = TinyVLAProcessor(config.policy).instruction_ids(["reach the goal"] * num_rows)
    old = -5.5 + 0.2 * rng.standard_normal(shape)
    columns = {
        "seed": rng.integers(1000, size=num_rows),
        "state": rng.standard_normal((num_rows, decisions, config.policy.state_dim)),
        "action_tokens": rng.integers(config.policy.num_bins, size=shape) * mask,
        "loss_mask": mask,
        "old_log_probs": old * mask,
        "ref_log_probs": (old + 0.1 * rng.standard_normal(shape)) * mask,
        "advantages": rng.standard_normal((num_rows, 1, 1)) * mask,
        "instruction_ids": words.numpy(),
    }
    floats = {name: array.astype(np.float32) for name, array in columns.items() if array.dtype == np.float64}
    return to_batch(columns | floats)


def demos_for(config: RunConfig) -> TensorDict:
    rng, length = np.random.default_rng(1), config.env.max_steps
    words = TinyVLAProcessor(config.policy).instruction_ids(["reach the goal"] * 2)
    return to_batch(
        {
            "state": rng.standard_normal((2, length, config.policy.state_dim)).astype(np.float32),
            "actions": rng.uniform(-1, 1, (2, length, config.policy.action_dim)).astype(np.float32),
            "num_steps": np.array([length, 7]),
            "instruction_ids": words.numpy(),
        }
    )


def assert_same_in_parts(trainer: TrainerEngine) -> None:
    """Check that the weights in parts are the full weights, on rank 0; every rank must call it."""
    weights, in_parts = trainer.weights(), trainer.weights_in_parts()
    if trainer.rank != 0:
        assert weights == {} and list(in_parts.parts) == []
        if in_parts.frozen:
            assert list(trainer.weights_in_parts(frozen_only=True).parts) == []
        return
    assert list(in_parts.outlines) == list(weights)
    digest = PartsDigest(in_parts.outlines)
    assert sum(part.values.nbytes for part in digest.watch(in_parts.parts)) == sum(w.nbytes for w in weights.values())
    assert digest.hexdigest() == digest_of(weights)
    if in_parts.frozen:
        frozen = trainer.weights_in_parts(frozen_only=True)
        digest = PartsDigest(frozen.outlines)
        assert frozen.outlines.keys() == in_parts.frozen and len([*digest.watch(frozen.parts)]) >= len(in_parts.frozen)
        assert digest.hexdigest() == digest_of({name: weights[name] for name in in_parts.frozen})


def largest_gap(left: Weights, right: Weights) -> float:
    assert left.keys() == right.keys()
    return max(float(np.abs(left[name] - right[name]).max()) for name in left)
