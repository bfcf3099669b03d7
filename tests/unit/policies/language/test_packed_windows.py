"""Models whose layers attend to a window: packed rows equal transformers' own passes over rows alone."""

from pathlib import Path
from typing import Any

import pytest
import torch
from language_rows import CONTEXTS, GROUPED, GROUPS, LENGTHS, alone, batch_of, one_by_one, rows, siblings
from local_models import EAGER, MODELS, attention_of, load_local, save_local
from tensordict import TensorDict

from embodyflow.policies.language.causal_lm.configuration_causal_lm import CausalLMConfig
from embodyflow.policies.language.causal_lm.policy_causal_lm import CausalLMPolicy
from embodyflow.policies.language.causal_lm.shared_prompts_causal_lm import is_used_in

TOKENIZER = "embodyflow.prompts.arithmetic:build_tokenizer"


@pytest.fixture(scope="module", params=MODELS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_local(kind, tmp_path_factory.mktemp(kind))


@pytest.fixture(scope="module")
def policy(kind: str, folder: Path) -> CausalLMPolicy:
    config = CausalLMConfig(path=str(folder), tokenizer=TOKENIZER, attn_implementation=attention_of(kind))
    return CausalLMPolicy(config, "cpu")


@pytest.fixture(scope="module")
def model(kind: str, folder: Path) -> Any:
    return load_local(kind, folder)


def gradient_of(model: Any, numbers: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    numbers.sum().backward()
    return torch.cat([each.grad.flatten() for _, each in sorted(model.named_parameters()) if each.grad is not None])


@pytest.mark.parametrize(
    "batch", [rows(LENGTHS), rows(LENGTHS[:1]), siblings(GROUPS, GROUPED)], ids=["strangers", "one", "siblings"]
)
def test_rows_equal_transformers(kind: str, policy: CausalLMPolicy, model: Any, batch: TensorDict) -> None:
    assert is_used_in(policy.model) == (kind not in EAGER)
    mine, expected = policy.evaluate(batch, 0.7), one_by_one(model, batch, 0.7)
    for one, other in zip(mine, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
    gradients = [gradient_of(each, log_probs) for each, (log_probs, _) in ((policy.model, mine), (model, expected))]
    assert torch.norm(gradients[0] - gradients[1]) <= 1e-5 * torch.norm(gradients[1])


def test_contexts_equal_transformers(policy: CausalLMPolicy, model: Any) -> None:
    def log_prob(tokens: torch.Tensor) -> torch.Tensor:
        return model(input_ids=tokens[None, :-1]).logits[0, -1].div(0.7).log_softmax(-1)[tokens[-1]]

    batch = batch_of(CONTEXTS)
    with torch.no_grad():
        log_probs, expected = policy.evaluate(batch, 0.7)[0], alone(batch, log_prob)
    torch.testing.assert_close(log_probs, expected, atol=1e-5, rtol=0)


def test_a_pass_without_packing_keeps_to_the_window(policy: CausalLMPolicy, model: Any) -> None:
    tokens = torch.arange(4, 30)[None]
    torch.testing.assert_close(policy.model(input_ids=tokens).logits, model(input_ids=tokens).logits)
