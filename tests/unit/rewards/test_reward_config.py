"""Shipped reward configurations, and invalid ones."""

import importlib.util
import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from pydantic import ValidationError

from embodyflow.errors import ConfigError
from embodyflow.rewards.reward_config import REASONING_GYM, RewardConfig
from embodyflow.rewards.reward_registry import build_reward_manager, check_reward

CONFIGS = Path(__file__).parents[3] / "configs" / "reward"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_configuration_names_every_setting_of_its_models(path):
    text = path.read_text().replace("function: ???", "function: math:sqrt").replace("path: ???", "path: folder")
    root = OmegaConf.create({"reward": OmegaConf.create(text), "rollout": {"max_response_tokens": 32}})
    shipped = OmegaConf.to_container(root.reward, resolve=True, throw_on_missing=True)
    assert RewardConfig(**shipped).model_dump() == {"function": None, **shipped}


EXACT = {"name": "exact_match"}


def one(sample): ...


def two(sample, other): ...


def each(samples):
    yield from samples


async def later(*samples, **columns): ...


class Marks:
    def __init__(self, sample): ...


class _Later:
    async def __call__(self, **columns): ...


Later = _Later()


def custom(function, origin="", **settings):
    return {"function": {"name": "custom", "function": f"{origin}{__name__}:{function}", **settings}}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"function": EXACT, "manager": {"name": "batch"}}, "allowed is custom"),
        ({"function": {"name": "math"}}, "function.name=math may never finish, .*; allowed is parallel"),
        ({"function": {"name": "math"}, "manager": {"name": "dapo", "max_tokens": 600}}, "allowed is parallel"),
        ({"function": {"name": "regex", "pattern": "(?:a+)+(b)"}}, "function.name=regex may never finish"),
        (
            {"function": {"name": "by_source", "default": {"name": "regex", "pattern": "(a)"}}},
            "function.default.name=regex may never finish",
        ),
        (
            {"function": {"name": "custom", "function": REASONING_GYM}},
            f"function.function={REASONING_GYM} may never finish, and manager.name=naive has no time limit",
        ),
        ({}, "function must be set with manager.name=naive"),
        (
            {"function": EXACT, "manager": {"name": "model", "path": "x"}},
            "function must be null with",
        ),
        ({"manager": {"name": "model", "path": "x", "template": "{prompt}"}}, r"must contain \{response\}"),
        ({"function": EXACT, "manager": {"name": "dapo", "max_tokens": 9}}, "overlong.buffer=512 must not exceed"),
        ({"function": {"name": "custom", "function": "math"}}, "write 'module:function'"),
        ({"function": {"name": "custom", "function": "math:squrt"}}, "'math' has no attribute 'squrt'"),
        ({"function": {"name": "custom", "function": "mathh:sqrt"}}, "cannot import module 'mathh'"),
        ({"function": {"name": "custom", "function": "math:pi"}}, "is a float; allowed is a function"),
        (custom("two"), r"missing a required argument: 'other'; it is called with one sample or a list of them"),
        (custom("one", kwargs={"strict": True}), "got an unexpected keyword argument 'strict'"),
        (custom("Marks"), "is a class; allowed are a function and an instance that can be called"),
        (custom("later"), "is asynchronous, so a call returns no score"),
        (custom("later", "verl:"), "is asynchronous"),
        (custom("Later", "trl:"), "is asynchronous"),
        (custom("each"), "function.function=.*:each: yields, so a call returns no score"),
        ({"function": {"name": "gsm8k", "marker": "#"}}, "Extra inputs are not permitted"),
        ({"function": EXACT, "manager": {"name": "parallel", "num_workers": 0}}, "greater than or equal to 1"),
        ({"function": EXACT, "manager": {"name": "parallel", "time_limit": 0}}, "greater than 0"),
    ],
)
def test_invalid_settings_are_refused(values, message):
    with pytest.raises(ValidationError, match=re.compile(message)):
        RewardConfig(**values)


def test_a_function_of_the_batch_may_yield_its_scores():
    config = RewardConfig(**custom("each"), manager={"name": "batch"})
    assert build_reward_manager(config).score([]) == []


def test_a_missing_library_is_named_with_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    config = RewardConfig(function={"name": "math"}, manager={"name": "parallel"})
    for look in (check_reward, build_reward_manager):
        with pytest.raises(ConfigError, match=r"math-verify is not installed; pip install 'embodyflow\[math\]'$"):
            look(config)
