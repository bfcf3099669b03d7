"""Loading a pretrained model's weights into the shards of two ranks."""

from pathlib import Path

import numpy as np
import pytest
import torch
from language_jobs import TINY, language_config
from safetensors.numpy import load_file, save_file
from torch.distributed.tensor import DTensor
from trainers import free_address, spawn_ranks

from embodyflow.config.composition.compose import compose_config
from embodyflow.policies.language.causal_lm.modeling_causal_lm import build_model, save_folder
from embodyflow.policies.language.causal_lm.policy_causal_lm import CausalLMPolicy
from embodyflow.policies.language.causal_lm.tokenizer_causal_lm import build_tokenizer
from embodyflow.training.language_trainer import LanguageTrainer

pytestmark = pytest.mark.integration


SPLITS = (1, 2)
"""Numbers of ranks that hold one copy of the model."""


def read_on(rank: int, folder: Path, addresses: list[str]) -> None:
    """Run on one of two ranks: load the model in ``folder``, check it, write its weights and the probe's log-probs."""
    words = [word for word in TINY if not word.startswith("policy.scratch")]
    words += ["policy=causal_lm", f"policy.path={folder}", "trainer.num_ranks=2"]
    for size, address in zip(SPLITS, addresses, strict=True):
        trainer = LanguageTrainer(compose_config([*words, f"trainer.tensor_parallel_size={size}"]), rank, 2)
        assert all(value.is_meta for value in trainer.policy.model.parameters())
        trainer.connect(address)
        for policy in trainer.policy_weights.policies:
            assert isinstance(policy, CausalLMPolicy)
            assert all(is_sharded(name, value, size) for name, value in policy.model.named_parameters())
            assert policy.model.lm_head.weight is policy.model.model.embed_tokens.weight
        probe, weights = trainer.probe(), trainer.weights()
        trainer.close()
        if rank == 0:
            save_file(weights | probe, folder / f"read-{size}.safetensors")


def is_sharded(name: str, value: torch.Tensor, size: int) -> bool:
    """Return True if a rank has half of a weight; with tensor parallelism only matrices in blocks need to be halved."""
    whole = size == 2 and ("_proj." not in name)
    return isinstance(value, DTensor) and (whole or value.to_local().numel() <= (value.numel() + value[0].numel()) / 2)


def test_two_ranks_load_the_same_weights_as_one(tmp_path: Path) -> None:
    policy = language_config().policy
    tokenizer = build_tokenizer(policy)
    torch.manual_seed(3)
    model = build_model(policy, tokenizer)
    save_folder(model, tokenizer, tmp_path)
    spawn_ranks(read_on, tmp_path, [free_address() for _ in SPLITS], num_ranks=2)
    expected = {name: value.numpy() for name, value in model.state_dict().items()}
    for size in SPLITS:
        read = load_file(tmp_path / f"read-{size}.safetensors")
        log_probs = read.pop("probe/log_probs")
        assert read.keys() == expected.keys() and all(np.array_equal(read[name], expected[name]) for name in read)
        assert np.isfinite(log_probs).all() and (log_probs < 0).all()
