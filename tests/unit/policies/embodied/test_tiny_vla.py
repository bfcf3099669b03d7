import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from embodyflow.policies.action_tokens import (
    greedy_tokens,
    sample_tokens,
    smoothed_targets,
    token_entropy,
    token_log_probs,
)
from embodyflow.policies.embodied.tiny_vla.configuration_tiny_vla import TinyVLAConfig
from embodyflow.policies.embodied.tiny_vla.modeling_tiny_vla import TinyVLA
from embodyflow.policies.embodied.tiny_vla.processing_tiny_vla import TinyVLAProcessor

SMALL = TinyVLAConfig(state_dim=6, action_dim=2, chunk_size=3, num_bins=8, hidden_size=16)


def observe(config: TinyVLAConfig, num_rows: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    observation = {
        "state": torch.randn(num_rows, config.state_dim, generator=generator),
        "instruction_ids": TinyVLAProcessor(config).instruction_ids(["open the drawer"] * num_rows),
    }
    for camera in config.seen_cameras:
        shape = (num_rows, config.image_size, config.image_size, 3)
        observation[camera] = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    return observation


@pytest.mark.parametrize("image_size", [None, 32])
def test_log_probs_do_not_depend_on_the_batch_they_are_computed_in(image_size: int | None) -> None:
    config = SMALL.model_copy(update={"hidden_size": 256, "image_size": image_size})
    torch.manual_seed(0)
    model, observation = TinyVLA(config), observe(config, 33)
    with torch.inference_mode():
        logits = model(observation)
        tokens, sampled = sample_tokens(logits, torch.rand(logits.shape[:2]), temperature=1.3)
        for cut in (slice(0, 1), slice(5, 17), slice(32, 33)):
            part = model({key: value[cut] for key, value in observation.items()})
            again = token_log_probs(part, tokens[cut], temperature=1.3)
            torch.testing.assert_close(again, sampled[cut], atol=1e-5, rtol=0)
    assert logits.shape == (33, 6, 8)
    assert logits.dtype == torch.float32


@pytest.mark.parametrize("changed", ["state", "instruction_ids", "image", "wrist_image"])
def test_every_modality_has_an_effect(changed: str) -> None:
    config = SMALL.model_copy(update={"image_size": 32, "cameras": ("image", "wrist_image")})
    torch.manual_seed(0)
    model, observation = TinyVLA(config), observe(config, 1)
    other = dict(observation)
    other[changed] = {
        "state": -observation["state"],
        "instruction_ids": TinyVLAProcessor(config).instruction_ids(["close the drawer"]),
        "image": 255 - observation["image"],
        "wrist_image": 255 - observation["wrist_image"],
    }[changed]
    assert not torch.allclose(model(observation), model(other), atol=1e-4)


def test_states_are_standardised_and_bounded() -> None:
    torch.manual_seed(0)
    model, observation = TinyVLA(SMALL), observe(SMALL, 4)
    expected = model(observation)
    model.embed.state_mean.fill_(3.0)
    model.embed.state_std.fill_(0.5)
    moved = observation | {"state": observation["state"] * 0.5 + 3.0}
    torch.testing.assert_close(model(moved), expected, atol=1e-5, rtol=0)
    far, further = (observation | {"state": torch.full((4, 6), x)} for x in (50.0, 5000.0))
    assert torch.equal(model(far), model(further))


def test_states_are_unchanged_without_statistics(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, observation = TinyVLA(SMALL), observe(SMALL, 4)
    model.save_pretrained(tmp_path)
    far, further = (observation | {"state": torch.full((4, 6), x)} for x in (50.0, 5000.0))
    for each in (model, TinyVLA.from_pretrained(tmp_path)):
        assert not torch.allclose(each(far), each(further), atol=1e-3)


def test_a_saved_policy_loads_unchanged(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = TinyVLA(SMALL)
    model.embed.state_mean.copy_(torch.arange(6.0))
    model.save_pretrained(tmp_path)
    loaded = TinyVLA.from_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()) == SMALL.model_dump(mode="json")
    assert (tmp_path / "model.safetensors").exists()
    assert loaded.config == SMALL
    observation = observe(SMALL, 3)
    assert torch.equal(loaded(observation), model.eval()(observation))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_bins": 1}, "num_bins"),
        ({"chunk_size": 0}, "chunk_size"),
        ({"image_size": 8}, "image_size"),
        ({"bins": 256}, "bins"),
        ({"state_dim": 0}, "state_dim=0 needs image_size"),
    ],
)
def test_wrong_sizes_are_refused_by_name(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TinyVLAConfig(**arguments)


def test_inverse_cdf_by_hand() -> None:
    # Probabilities 0.2, 0.5, 0.3: the cumulative distribution is 0.2, 0.7, 1.
    logits = torch.tensor([0.2, 0.5, 0.3]).log().expand(1, 5, 3)
    uniforms = torch.tensor([[0.0, 0.1999, 0.2001, 0.6999, 0.7001]])
    tokens, log_probs = sample_tokens(logits, uniforms, temperature=1.0)
    assert tokens.tolist() == [[0, 0, 1, 1, 2]]
    expected = torch.tensor([[0.2, 0.2, 0.5, 0.5, 0.3]]).log()
    torch.testing.assert_close(log_probs, expected)
    assert greedy_tokens(logits).tolist() == [[1] * 5]


def test_temperature_and_entropy_by_hand() -> None:
    # Odds 1:3 at temperature 1 are 1:sqrt(3) at temperature 2.
    logits = torch.tensor([[[0.0, math.log(3.0)]]])
    cold, hot = 3 / 4, math.sqrt(3) / (1 + math.sqrt(3))
    one = torch.tensor([[1]])
    assert token_log_probs(logits, one, 1.0).item() == pytest.approx(math.log(cold), abs=1e-6)
    assert token_log_probs(logits, one, 2.0).item() == pytest.approx(math.log(hot), abs=1e-6)
    entropy = -cold * math.log(cold) - (1 - cold) * math.log(1 - cold)
    assert token_entropy(logits, 1.0).item() == pytest.approx(entropy, abs=1e-6)
    assert token_entropy(torch.zeros(1, 1, 256), 1.0).item() == pytest.approx(math.log(256), abs=1e-5)


@given(st.integers(0, 2**32 - 1), st.floats(0.1, 10.0))
def test_sampling_draws_from_the_distribution(seed: int, temperature: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(1, 1, 7, generator=generator)
    grid = (torch.arange(4000.0) + 0.5) / 4000  # evenly spaced, so every bin occurs in its proportion
    tokens, log_probs = sample_tokens(logits.expand(1, 4000, 7), grid.unsqueeze(0), temperature)
    frequency = torch.bincount(tokens[0], minlength=7) / 4000
    torch.testing.assert_close(frequency, torch.softmax(logits[0, 0] / temperature, -1), atol=5e-4, rtol=0)
    assert torch.equal(tokens, tokens.sort().values)
    assert torch.equal(log_probs, token_log_probs(logits.expand(1, 4000, 7), tokens, temperature))


def test_the_largest_uniform_stays_inside_the_bins_and_off_impossible_ones() -> None:
    logits = torch.full((1, 2, 256), -1e4)
    logits[..., 100] = 0.0
    uniforms = torch.tensor([[0.0, torch.finfo(torch.float32).eps * -0.5 + 1.0]])
    tokens, log_probs = sample_tokens(logits, uniforms, temperature=1.0)
    assert tokens.tolist() == [[100, 100]]
    assert log_probs.tolist() == [[0.0, 0.0]]


def test_instructions_become_ids_of_their_words() -> None:
    processor = TinyVLAProcessor(SMALL)
    ids = processor.instruction_ids(["Open the drawer.", "open the window", "drawer"])
    assert ids.shape == (3, SMALL.max_instruction_length)
    assert ids[0, :2].tolist() == ids[1, :2].tolist()
    assert ids[0, 2] == ids[2, 0] != ids[1, 2]
    assert (ids[0, :3] > 0).all()
    assert not ids[0, 3:].any()
    assert ids.max() < SMALL.vocab_size


@pytest.mark.parametrize("instruction", ["", " ?! ", "word " * 17])
def test_an_instruction_without_words_or_with_too_many_is_refused(instruction: str) -> None:
    with pytest.raises(ValueError, match="must have 1 to 16 words"):
        TinyVLAProcessor(SMALL).instruction_ids([instruction])


def test_tokens_and_actions_by_hand() -> None:
    processor = TinyVLAProcessor(TinyVLAConfig(chunk_size=2, action_dim=2, num_bins=4))
    actions = processor.actions(torch.tensor([[0, 1, 2, 3]]))
    assert actions.tolist() == [[[-0.75, -0.25], [0.25, 0.75]]]
    edges = torch.tensor([[[-1.0, -0.5], [0.49, 1.0]], [[-9.0, 9.0], [0.0, -0.01]]])
    assert processor.tokens(edges).tolist() == [[0, 1, 2, 3], [0, 3, 2, 1]]


@given(st.integers(2, 1024))
def test_every_token_survives_decoding_and_encoding(num_bins: int) -> None:
    processor = TinyVLAProcessor(TinyVLAConfig(chunk_size=1, action_dim=1, num_bins=num_bins))
    tokens = torch.arange(num_bins).unsqueeze(1)
    assert torch.equal(processor.tokens(processor.actions(tokens)), tokens)


def test_smoothed_targets_are_a_gaussian_around_the_action() -> None:
    processor = TinyVLAProcessor(TinyVLAConfig(chunk_size=1, action_dim=2, num_bins=256))
    positions = processor.positions(processor.actions(torch.tensor([[100, 0]])))
    targets = smoothed_targets(positions, 256, sigma=4.0)
    assert targets.shape == (1, 2, 256)
    torch.testing.assert_close(targets.sum(-1), torch.ones(1, 2))
    middle, edge = targets[0]
    assert middle.argmax() == 100 and edge.argmax() == 0
    # One standard deviation from its mean, a Gaussian has exp(-1/2) of its height.
    assert (middle[104] / middle[100]).item() == pytest.approx(math.exp(-0.5), abs=1e-5)
    torch.testing.assert_close(middle[60:100], middle[101:141].flip(0))
    bins = torch.arange(256.0)
    assert ((middle * (bins - 100) ** 2).sum().sqrt()).item() == pytest.approx(4.0, abs=1e-3)
    for sigma in (0.05, 0.0):
        assert smoothed_targets(positions, 256, sigma)[0, :, [100, 0]].diagonal().tolist() == [1.0, 1.0]


def test_raising_one_bin_raises_its_neighbours() -> None:
    model = TinyVLA(TinyVLAConfig(num_bumps=32))
    observation = {"state": torch.zeros(1, 30), "instruction_ids": torch.ones(1, 16, dtype=torch.int64)}
    before = model(observation)
    before[0, 0, 100].backward()
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter += 1e-3 * parameter.grad
    rise = (model(observation) - before)[0, 0].detach()
    assert rise.argmax().item() in range(98, 103)
    assert (rise[96:105] > 0.8 * rise.max()).all(), "neighbouring actions rise with it"
    assert rise[[0, 255]].abs().max() < 1e-3 * rise.max(), "far ones stay"
