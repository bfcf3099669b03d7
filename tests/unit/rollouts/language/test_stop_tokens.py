"""Tokens that end a response by their texts."""

import pytest
from language_jobs import language_config, sampled
from trainers import free_address

from embodyflow.errors import ConfigError
from embodyflow.rollouts.language.language_rollout import LanguageRollout
from embodyflow.rollouts.language.stop_tokens import check_stop_tokens
from embodyflow.training.language_trainer import LanguageTrainer


def test_a_named_token_ends_a_response_and_is_its_last() -> None:
    config = language_config("rollout.stop_tokens=['1','2','3']", "rollout.num_groups=8", "rollout.group_size=4")
    check_stop_tokens(config)
    trainer, rollout = LanguageTrainer(config, 0, 1), LanguageRollout(config, 0, 1)
    trainer.connect(free_address())
    rollout.update_weights(trainer.weights() | trainer.probe(), version=0)
    named = rollout.tokenizer("123", add_special_tokens=False)["input_ids"]
    rows = sampled(rollout)
    trainer.close()
    rollout.close()
    ended = set()
    for response, length, stopped in zip(
        rows["action_tokens"][..., 0].tolist(), rows["response_length"], rows["terminated"], strict=True
    ):
        assert not {*named} & {*response[: length - 1]}
        ended |= {response[length - 1]} if stopped else set()
    assert {*named} <= ended


def test_a_text_of_several_tokens_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"rollout.stop_tokens='12': the tokenizer has no such token and reads 2"):
        check_stop_tokens(language_config("rollout.stop_tokens=['12']"))
