import sys
from types import ModuleType

import pytest
import torch
from pydantic import ValidationError

from embodyflow.algorithms.advantages import AdvantageInputs, compute_advantages
from embodyflow.algorithms.aggregation import count_tokens, token_weights
from embodyflow.algorithms.algorithm_config import AlgorithmConfig
from embodyflow.algorithms.algorithm_registry import ADVANTAGES, LOSSES, register_advantage, register_loss
from embodyflow.algorithms.losses import LossInputs, find_loss
from embodyflow.algorithms.objective import policy_objective
from embodyflow.errors import ConfigError


def refused(**settings):
    with pytest.raises(ValidationError) as error:
        AlgorithmConfig(**settings)
    return str(error.value)


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"loss": "gspo"}, ["loss=gspo", "aggregation=token_mean", "seq_mean_token_mean"]),
        ({"loss": "gmpo", "aggregation": "token_mean"}, ["loss=gmpo", "seq_mean_token_mean"]),
        (
            {"loss": "gspo", "advantage": "gae", "aggregation": "seq_mean_token_mean"},
            ["loss=gspo", "advantage=gae", "allowed: grpo, dr_grpo, rloo"],
        ),
        (
            {"loss": "gmpo", "advantage": "reinforce_plus_plus"},
            ["loss=gmpo", "advantage=reinforce_plus_plus"],
        ),
        ({"advantage": "cpgd"}, ["advantage=cpgd", "loss=ppo", "allowed: cpgd"]),
        ({"loss": "pop"}, ["loss", "'pop'", "ppo, gspo", "module:function"]),
        ({"advantage": "no_such_module:f"}, ["no_such_module"]),
        ({"advantage": "math:no_such_name"}, ["no_such_name"]),
        ({"loss": "math:pi"}, ["'math:pi' is not a function"]),
        ({"loss": "textwrap:dedent"}, ["loss 'textwrap:dedent' must be a function of (inputs, config)"]),
        ({"advantage": "math:sqrt"}, ["advantage 'math:sqrt' must be a function of (inputs, config)"]),
        ({"clip_ratio_c": 1.0}, ["clip_ratio_c", "greater than 1"]),
        ({"clip_low": 1.0}, ["clip_low", "less than 1", "loss=cispo"]),
        ({"clip_low": 1.1, "loss": "cispo"}, ["clip_low", "less than or equal to 1"]),
        ({"pass_k": 0}, ["pass_k", "greater than or equal to 1"]),
        ({"top_entropy_fraction": 0.0}, ["top_entropy_fraction", "greater than 0"]),
        (
            {"top_entropy_fraction": 0.2, "old_log_probs": "recorded"},
            ["top_entropy_fraction=0.2", "old_log_probs=recorded", "recomputed and proximal"],
        ),
        ({"rejection": {"level": "token"}}, ["rejection.level=token", "old_log_probs=proximal", "recomputed"]),
        ({"rejection": {"low": 2.0, "high": 2.0}}, ["low=2.0 must be less than high=2.0"]),
        ({"clip_high": float("nan")}, ["clip_high"]),
        ({"gamma": 1.5}, ["gamma", "less than or equal to 1"]),
        ({"clip_hihg": 0.3}, ["clip_hihg", "Extra inputs"]),
        ({"kl": {"coef": 0.1, "estimator": "k3+", "placement": "reward"}}, ["k3+", "k1, k2, k3, abs"]),
        ({"kl": {"placement": "reward"}}, ["placement=reward", "coef must be > 0"]),
        ({"kl": {"coef": 0.1, "horizon": 5}}, ["horizon=5", "target is null"]),
        ({"kl": {"target": 0.1}}, ["coef must be > 0"]),
        ({"kl": {"final_coef": 0.1}}, ["final_coef=0.1", "coef > 0"]),
        ({"kl": {"coef": 0.1, "final_coef": 0.1, "target": 0.1}}, ["final_coef and target"]),
        ({"kl": {"refresh_every": 5}}, ["refresh_every=5", "coef > 0"]),
        ({"covariance": {"low": 5.0, "high": 5.0}}, ["low=5.0 must be less than high=5.0"]),
    ],
)
def test_what_does_not_fit_is_refused_with_its_key(settings, parts):
    message = refused(**settings)
    for part in parts:
        assert part in message


def test_the_lower_bound_of_cispo_survives_json():
    for settings in ({}, {"clip_low": 0.2}):
        config = AlgorithmConfig(loss="cispo", **settings)
        assert config.clip_low == settings.get("clip_low", 1.0)
        assert AlgorithmConfig.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize(
    "advantage",
    [
        "grpo",
        "dr_grpo",
        "rloo",
        "opo",
        "pass_at_k",
        "reinforce_plus_plus",
        "reinforce_plus_plus_baseline",
        "gae",
        "marft",
        "rae",
    ],
)
@pytest.mark.parametrize("loss", ["ppo", "cispo", "cpgd", "clip_cov", "kl_cov", "gpg", "sapo"])
def test_token_losses_take_any_estimator(advantage, loss):
    config = AlgorithmConfig(advantage=advantage, loss=loss, per_agent=advantage == "rae")
    assert config.needs_critic == (advantage in ("gae", "marft"))


def test_the_reference_is_needed_with_a_coefficient_only():
    assert not AlgorithmConfig().needs_reference
    assert AlgorithmConfig(kl={"coef": 0.1}).needs_reference


def test_config_survives_json():
    config = AlgorithmConfig(loss="gspo", aggregation="seq_mean_token_mean", kl={"coef": 0.1, "target": 0.2})
    assert AlgorithmConfig.model_validate_json(config.model_dump_json()) == config


OUTSIDE = '''
import torch
from embodyflow.algorithms.algorithm_registry import register_advantage


def squared(inputs, config):
    """(log π + A)²/2: gradient log π + A."""
    metrics = {"policy/mine": (torch.tensor(1.0), torch.tensor(2))}
    return 0.5 * (inputs.log_probs + inputs.advantages).square(), metrics


@register_advantage("outside_raw", per_row=True)
def raw(inputs, config):
    scores = (inputs.rewards * inputs.mask).sum(1, keepdim=True) * inputs.mask
    return scores, scores
'''


@pytest.fixture
def outside_module(tmp_path, monkeypatch):
    (tmp_path / "outside_algorithms.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("outside_algorithms", None)
    ADVANTAGES.entries.pop("outside_raw", None)


def test_a_loss_and_an_estimator_from_outside(outside_module):
    config = AlgorithmConfig(advantage="outside_algorithms:raw", loss="outside_algorithms:squared")
    mask = torch.tensor([[True, True], [True, False]])
    rewards = torch.tensor([[1.0, 2.0], [5.0, 0.0]])
    advantages, _ = compute_advantages(AdvantageInputs(rewards, mask, torch.tensor([0, 1])), config)
    assert advantages.tolist() == [[3.0, 3.0], [5.0, 0.0]]
    log_probs = torch.full((2, 2), -1.0, requires_grad=True)
    weights = token_weights(mask, config.aggregation, count_tokens(mask, mask.shape[1]))
    loss, metrics = policy_objective(LossInputs(log_probs, log_probs.detach(), advantages, mask), weights, config)
    loss.backward()
    assert loss.item() == pytest.approx((2 + 2 + 8) / 3)
    assert log_probs.grad.tolist() == [pytest.approx([2 / 3, 2 / 3]), pytest.approx([4 / 3, 0.0])]
    assert metrics["policy/mine"][1] == 2


def test_what_the_decorator_declares_holds_for_the_function_named_by_module(outside_module):
    """per_row is declared by the decorator, so a row loss takes it under either name."""
    for name in ("outside_algorithms:raw", "outside_raw"):
        assert AlgorithmConfig(advantage=name, loss="gspo", aggregation="seq_mean_token_mean").advantage == name


def test_names_are_registered_once():
    for register, registry, name in (
        (register_loss, LOSSES, "ppo"),
        (register_advantage, ADVANTAGES, "grpo"),
    ):
        before = registry.resolve(name)
        with pytest.raises(ConfigError, match=f"'{name}' exists"):
            register(name)(lambda inputs, config: None)
        assert registry.resolve(name) is before


def test_a_callable_module_attribute_need_not_be_registered(monkeypatch):
    module = ModuleType("made_up")
    module.loss = lambda inputs, config: (inputs.log_probs, {})
    monkeypatch.setitem(sys.modules, "made_up", module)
    assert find_loss("made_up:loss") is module.loss
