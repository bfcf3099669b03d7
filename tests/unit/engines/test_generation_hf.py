"""Continuous refilling of the transformers engine."""

from pathlib import Path

import pytest
from transformers import MistralConfig, MistralForCausalLM

from embodyflow.config.generation import HFConfig
from embodyflow.engines.generation.hf import HFEngine
from embodyflow.engines.generation.interface import Request, Sampling
from embodyflow.errors import ConfigError
from tests.language_models import VOCAB, save_model

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_long_completion_holds_up_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two slots, lengths from 1 to 24: as many passes as the tokens need, not as the longest of each pair."""
    engine = HFEngine(HFConfig(max_num_seqs=2), save_model(tmp_path, tied=True), "cpu")
    sampling = Sampling(24, stop_token_ids=tuple(range(0, len(VOCAB), 6)))
    requests = [Request((1, 2), seed) for seed in range(24)]
    lengths = [len(one.token_ids) for one in engine.generate(requests, sampling)]
    assert min(lengths) == 1 and max(lengths) == 24
    passes, forward = [], engine._forward
    monkeypatch.setattr(engine, "_forward", lambda *a, **k: passes.append(1) or forward(*a, **k))
    order = [position for position, _ in engine.stream(requests, sampling)]
    longest = lengths.index(max(lengths))
    assert order.index(longest) > longest and sorted(order) == list(range(24))
    # A pass over the prompt for each that comes in after the first two, and steps of two rows, at the end of one.
    assert len(passes) <= 23 + sum(lengths) / 2 + max(lengths) / 2
    in_pairs = sum(max(pair) for pair in zip(lengths[::2], lengths[1::2], strict=True))
    assert len(passes) - 23 < 0.75 * in_pairs


def test_layers_that_do_not_see_all_positions_are_refused(tmp_path: Path) -> None:
    config = MistralConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, sliding_window=4
    )
    MistralForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"mistral .*name=vllm"):
        HFEngine(HFConfig(), tmp_path, "cpu")
