"""What π0.5 has of its own: the state in the prompt, quantiles, and the time in the expert's normalisations."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from flow_vla_models import INSTRUCTIONS, golden_imitation, golden_noise, observe, tensors
from pi05_models import GOLDEN, GOLDEN_LOSS, NUM_TOKENS, TOLERANCE, new_critic, new_policy
from policy_rows import as_batch, uniforms_for
from transformers import GemmaConfig
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm

from embodyflow.errors import ConfigError
from embodyflow.policies.embodied.flow_vla.layers_flow_vla import rotary_embedding
from embodyflow.policies.embodied.flow_vla.tokenizer_flow_vla import build_tokenizer
from embodyflow.policies.embodied.pi05.layers_pi05 import AdaptiveLayer, AdaptiveNorm
from embodyflow.policies.embodied.pi05.policy_pi05 import PI05Policy
from embodyflow.policies.embodied.pi05.prompt_pi05 import StatePrompt

LEROBOT = "EMBODYFLOW_LEROBOT_PI05_PYTHON"
"""Environment variable with the interpreter of the environment that play_pi05.py describes."""
PLAY = Path(__file__).parents[3] / "support" / "lerobot_play" / "play_pi05.py"


def prompts(policy: PI05Policy, state: torch.Tensor) -> list[str]:
    """Return the prompts that the model reads for states that are normalised and padded."""
    beginnings = torch.from_numpy(np.stack([policy.encode_instruction("push it")] * len(state)))
    ids = policy._prompt(beginnings, state)
    assert ids.shape == beginnings.shape
    return [policy.tokenizer.decode(row[row > 0]).replace(" ", "") for row in ids]


def test_the_state_is_written_into_the_prompt_by_its_256_bins() -> None:
    policy = new_policy()
    state = torch.tensor([-1.5, -1.0, -0.0079, 0.0, 0.0079, 0.9999, 1.0, 7.0])
    assert prompts(policy, state[None]) == ["Task:pushit,State:-10126128129255255255;\nAction:"]
    fine = torch.linspace(-1.2, 1.2, 8 * 501).reshape(-1, 8)
    numbers = np.digitize(fine.numpy(), np.linspace(-1, 1, 257)[:-1]) - 1  # LeRobot's formula
    expected = [f"Task:pushit,State:{''.join(map(str, row))};\nAction:" for row in numbers]
    assert prompts(policy, fine) == expected


def test_the_longest_state_fits_beside_the_instruction() -> None:
    policy = new_policy(max_prompt_tokens=NUM_TOKENS + len("push it"))
    [longest] = prompts(policy, torch.full((1, 8), 1.0))
    assert longest.endswith("255;\nAction:")


def test_an_instruction_is_cleaned_as_lerobot_does() -> None:
    policy = new_policy()
    assert np.array_equal(policy.encode_instruction(" push_it\n"), policy.encode_instruction("push it"))


def test_the_prompt_begins_with_paligemmas_first_token() -> None:
    tokenizer = build_tokenizer()
    plain = StatePrompt(tokenizer).begin("push", 1, 60)
    tokenizer.add_special_tokens({"bos_token": "^"})
    begun = StatePrompt(tokenizer).begin("push", 1, 60)
    assert begun[0] == tokenizer.bos_token_id and begun[1:].tolist() == plain[:-1].tolist()


def test_a_tokenizer_that_joins_digits_is_refused() -> None:
    class Joining:
        bos_token_id = None

        def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
            return {"input_ids": [len(text)]}

    with pytest.raises(ConfigError, match=r"^policy.tokenizer: must make tokens of each digit and each space, as") as e:
        StatePrompt(Joining())
    assert "\n" not in str(e.value)


def test_quantiles_become_minus_one_and_one() -> None:
    policy, rng = new_policy(), torch.Generator().manual_seed(0)
    states, actions = (3 + 2 * torch.randn(500, size, generator=rng) for size in (5, 3))
    policy.set_normalization(states, actions)
    found = policy.model.statistics
    low, high = np.quantile(states.numpy(), [0.01, 0.99], axis=0)
    np.testing.assert_allclose(found.state_q01, low, rtol=1e-5)
    np.testing.assert_allclose(found.state_q99, high, rtol=1e-5)
    standard = found.standardise("state", states, 5)
    np.testing.assert_allclose(standard, 2 * (states.numpy() - low) / (high - low) - 1, atol=1e-5)
    assert 0.97 < ((standard >= -1) & (standard <= 1)).float().mean() < 0.99, "no value is clipped"


def test_a_layer_is_at_first_a_plain_one_and_does_nothing_with_closed_gates() -> None:
    config = GemmaConfig(hidden_size=8, intermediate_size=16, num_attention_heads=2, num_key_value_heads=1, head_dim=4)
    layer, rng = AdaptiveLayer(config), torch.Generator().manual_seed(0)
    hidden, condition = torch.randn(2, 3, 8, generator=rng), torch.randn(2, 8, generator=rng)
    rotary, mask = rotary_embedding(torch.arange(3).expand(2, -1), 4), torch.ones(2, 1, 3, 3, dtype=torch.bool)
    nothing = (torch.zeros(2, 1, 0, 4),) * 2
    plain = GemmaRMSNorm(8, config.rms_norm_eps)
    after = hidden + layer.self_attn(plain(hidden), rotary, mask, None)[0]
    expected = after + layer.mlp(plain(after))
    torch.testing.assert_close(layer(hidden, condition, rotary, mask, nothing), expected)
    for norm in (layer.input_layernorm, layer.post_attention_layernorm):
        norm.dense.bias.data[16:] = 0.0
    assert torch.equal(layer(hidden, condition, rotary, mask, nothing), hidden)


def test_the_condition_scales_and_shifts() -> None:
    norm = AdaptiveNorm(2, 0.0)
    norm.dense.weight.data = torch.tensor([[1.0, 0], [0, 2], [3, 0], [0, 4], [5, 0], [0, 6]])
    hidden, gate = norm(torch.tensor([[[3.0, 4.0]]]), torch.tensor([[1.0, 10.0]]))
    unit = torch.tensor([3.0, 4.0]) / 12.5**0.5
    torch.testing.assert_close(hidden[0, 0], unit * torch.tensor([2.0, 21.0]) + torch.tensor([3.0, 40.0]))
    torch.testing.assert_close(gate[0, 0], torch.tensor([1 + 5.0, 1 + 60.0]))


def test_the_critic_reads_the_state_without_an_expert() -> None:
    policy, critic = new_policy(), new_critic()
    critic.start_from(policy.model.state_dict())
    torch.nn.init.ones_(critic.model.value[-1].weight)
    assert not any("expert.model" in name for name in critic.model.state_dict())
    observation = observe(policy, 2)
    batch = as_batch(policy, observation, policy.act(observation, uniforms_for(policy, 2), 1.0).tokens)
    before = critic.evaluate(batch)[:, 1]
    batch["state"][:, 1] += 0.3
    assert (critic.evaluate(batch)[:, 1] - before).abs().min() > 1e-4


def test_only_the_executed_actions_of_a_chunk_are_returned() -> None:
    policy = new_policy(chunk_size=4)
    assert (policy.horizon, policy.num_imitated_dims, policy.num_draws) == (4, 3, 4 * 4 * 8)
    # 2 cameras of 16 patches; the prompt, with the state in it; 4 actions in 3 steps.
    assert list(policy.block_tokens) == [32, 32 + 80, 32 + 80, 12, 12]


@pytest.mark.skipif(LEROBOT not in os.environ, reason=f"LeRobot's π0.5 is not installed; {LEROBOT} names its Python")
def test_lerobots_own_code_loads_an_export_and_acts_alike(tmp_path: Path) -> None:
    policy = new_policy(noise_level=1e-6)
    policy.export({name: value.numpy() for name, value in policy.model.state_dict().items()}, tmp_path / "policy")
    observation = observe(policy, 2)
    actions, _, _ = golden_imitation(policy)
    ids, state = (tensors(observation)[name] for name in ("instruction_ids", "state"))
    read = policy._prompt(ids, policy.model.statistics.standardise("state", state, 8))
    given = {"instructions": np.array(INSTRUCTIONS), "times": np.array([0.3, 0.8], np.float32)}
    given |= {"noise": golden_noise().numpy(), "actions": actions.numpy()}
    given |= {name: values for name, values in observation.items() if name != "instruction_ids"}
    np.savez(tmp_path / "inputs.npz", **given)
    command = [os.environ[LEROBOT], PLAY, tmp_path / "policy", tmp_path / "inputs.npz", tmp_path / "answers.npz"]
    played = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert played.returncode == 0, played.stderr[-3000:]
    assert "All keys loaded successfully!" in played.stdout
    answers = np.load(tmp_path / "answers.npz")
    np.testing.assert_array_equal(answers["tokens"], read)
    np.testing.assert_allclose(answers["chunks"], GOLDEN, atol=TOLERANCE)
    assert answers["loss"] == pytest.approx(GOLDEN_LOSS, rel=1e-5)
