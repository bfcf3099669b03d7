"""Tests of language rollouts with a real engine and trainer in one process."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from language_jobs import connected_trainer, language_config, sampled
from node_calls import call_of
from trainers import free_address
from transformers import AutoModelForCausalLM, GenerationConfig, OPTConfig

import tasks
from embodyflow.data.batches import to_batch
from embodyflow.data.rows_file import Journal
from embodyflow.errors import ConfigError, ParityError
from embodyflow.policies.language.causal_lm.modeling_causal_lm import save_folder
from embodyflow.policies.language.causal_lm.policy_causal_lm import CausalLMPolicy
from embodyflow.policies.language.causal_lm.tokenizer_causal_lm import build_tokenizer
from embodyflow.prompts.prompt_registry import build_prompt_source
from embodyflow.rollouts.language.language_rollout import LanguageRollout, shuffled_rows
from embodyflow.training.imitation.imitation import Imitation, ResponseSamples
from embodyflow.training.language_trainer import LanguageTrainer
from embodyflow.types import Batch

CONFIG = language_config()


@pytest.fixture(scope="module")
def trainer() -> Iterator[LanguageTrainer]:
    with connected_trainer(CONFIG) as trainer:
        yield trainer


@pytest.fixture
def rollout(trainer: LanguageTrainer) -> Iterator[LanguageRollout]:
    rollout = LanguageRollout(CONFIG, 0, 1)
    rollout.update_weights(trainer.weights() | trainer.probe(), version=3)
    yield rollout
    rollout.close()


def answered(rollout: LanguageRollout, responses: list[str]) -> Batch:
    """Return rows that answer the first validation prompts with the given responses."""
    rows = rollout.play(rollout.evaluation_episodes()[: len(responses)], "eval", None)
    tokens = [rollout.tokenizer(text, add_special_tokens=False)["input_ids"] for text in responses]
    longest = max(map(len, tokens))
    rows["action_tokens"] = np.array([row + [0] * (longest - len(row)) for row in tokens])[..., None]
    rows["response_length"] = np.array(list(map(len, tokens)))
    return to_batch({name: rows[name] for name in rows if name not in ("log_probs", "loss_mask")})


def test_the_columns_are_those_of_a_language_row(rollout: LanguageRollout) -> None:
    rows = sampled(rollout)
    lengths, longest = rows["response_length"], int(rows["response_length"].max())
    assert rows["action_tokens"].shape == rows["log_probs"].shape == rows["loss_mask"].shape == (4, longest, 1)
    assert (rows["action_tokens"].dtype, rows["log_probs"].dtype) == (torch.int64, torch.float32)
    assert torch.equal(rows["loss_mask"].flatten(1).sum(1), lengths) and rows["prompt_tokens"].shape == (4, 7)
    assert rows["policy_version"].tolist() == [3] * 4
    assert rows["uid"].tolist() == [4, 5, 6, 7] and rows["group_id"].tolist() == [2, 2, 3, 3]
    assert rows["prompt_id"][0] == rows["prompt_id"][1] and len(rows["seed"].unique()) == 4
    assert torch.equal(rows["terminated"], ~rows["truncated"])
    assert (rows["log_probs"][~rows["loss_mask"]] == 0).all() and (rows["log_probs"][rows["loss_mask"]] < 0).all()


def test_responses_do_not_depend_on_the_number_of_workers(rollout: LanguageRollout, trainer: LanguageTrainer) -> None:
    whole, parts = sampled(rollout), []
    for rank in (0, 1):
        half = LanguageRollout(language_config("rollout.num_workers=2"), rank, 2)
        half.update_weights(trainer.weights() | trainer.probe(), version=3)
        parts.append(sampled(half))
        half.close()
    for name in ("uid", "seed", "prompt_id", "response_length"):
        assert torch.equal(torch.cat([part[name] for part in parts]), whole[name]), name
    tokens = [row["action_tokens"][row["loss_mask"]].tolist() for part in parts for row in part]
    assert tokens == [row["action_tokens"][row["loss_mask"]].tolist() for row in whole]
    assert not torch.equal(sampled(rollout, iteration=2)["seed"], whole["seed"])


def test_groups_in_the_journal_are_not_sampled_again(trainer: LanguageTrainer, tmp_path: Path) -> None:
    rollout = LanguageRollout(language_config("rollout.groups_per_call=1"), 0, 1)
    rollout.update_weights(trainer.weights() | trainer.probe(), version=3)
    questions, draws, sample = rollout.training_episodes(0, 1), (0, 1, "rollout"), rollout._sample
    expected = rollout.play(questions, "train", draws, Journal(tmp_path / "undisturbed"))
    journal, sampled_groups = Journal(tmp_path / "0.0.parts"), []

    def sample_and_die(call, *args):
        sampled_groups.append({question.group_id for question in call})
        if len(sampled_groups) == 2:
            raise KeyboardInterrupt
        return sample(call, *args)

    rollout._sample = sample_and_die
    with pytest.raises(KeyboardInterrupt):
        rollout.play(questions, "train", draws, journal)
    again = rollout.play(questions, "train", draws, journal)  # as a replacement worker does
    assert sampled_groups == [{2}, {3}, {3}]
    assert again.keys() == expected.keys() and all(np.array_equal(again[name], expected[name]) for name in expected)
    rollout.close()


def test_the_folder_of_a_scratch_model_is_removed_after_its_engine_is_built(
    trainer: LanguageTrainer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rollout = LanguageRollout(CONFIG, 0, 1)
    rollout.update_weights(trainer.weights() | trainer.probe(), version=3)
    assert list(tmp_path.iterdir()) == []
    before = sampled(rollout)
    rollout.update_weights(trainer.weights() | trainer.probe(), version=4)
    assert torch.equal(sampled(rollout)["action_tokens"], before["action_tokens"])
    rollout.close()


@pytest.mark.parametrize("turn_ends", [True, False])
def test_a_response_also_stops_at_the_tokens_of_the_models_folder(
    trainer: LanguageTrainer, tmp_path: Path, turn_ends: bool
) -> None:
    trainer.policy.export(trainer.weights(), tmp_path)
    eos, turn_end = trainer.policy.tokenizer.eos_token_id, 9
    if turn_ends:
        GenerationConfig(eos_token_id=[eos, turn_end]).save_pretrained(tmp_path)
    else:
        (tmp_path / "generation_config.json").unlink()
    rollout = LanguageRollout(language_config("policy.scratch=null", f"policy.path={tmp_path}"), 0, 1)
    rollout.update_weights(trainer.weights() | trainer.probe(), version=3)
    rows = rollout.play(rollout.evaluation_episodes("sampled") * 8, "eval", (0, "evaluate"))
    rollout.close()
    responses = [tokens[mask].tolist() for tokens, mask in zip(rows["action_tokens"], rows["loss_mask"], strict=True)]
    stops = {eos, turn_end} if turn_ends else {eos}
    assert all(stops.isdisjoint(response[:-1]) for response in responses)
    assert [response[-1] in stops for response in responses] == rows["terminated"].tolist()
    assert any(turn_end in response for response in responses)


def test_a_model_that_ignores_positions_of_packed_sequences_agrees(tmp_path: Path) -> None:
    """Use OPT, which computes positions itself: in a packed line a sequence would attend to the one before it."""
    sizes = {"hidden_size": 16, "word_embed_proj_dim": 16, "ffn_dim": 32, "num_hidden_layers": 1}
    config = language_config()
    tokenizer = build_tokenizer(config.policy)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        OPTConfig(vocab_size=len(tokenizer), num_attention_heads=2, init_std=0.5, **sizes)
    )
    save_folder(model, tokenizer, tmp_path)
    config = language_config("policy.scratch=null", f"policy.path={tmp_path}")
    rollout, trainer = LanguageRollout(config, 0, 1), LanguageTrainer(config, 0, 1)
    trainer.connect(free_address())
    rollout.update_weights(trainer.weights() | trainer.probe(), version=1)
    trainer.close()
    rollout.close()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_rollout_and_trainer_agree_on_log_probs(trainer: LanguageTrainer, temperature: float) -> None:
    rollout = LanguageRollout(language_config(f"rollout.temperature={temperature}"), 0, 1)
    rollout.update_weights(trainer.weights() | trainer.probe(), version=1)
    rows = sampled(rollout)
    rollout.close()
    log_probs, _ = trainer.policy.evaluate(rows, temperature)
    assert (log_probs - rows["log_probs"]).abs().max() <= 1e-5


def test_a_prompt_repeats_only_after_all_others() -> None:
    seen = np.concatenate([shuffled_rows(7, 10, first, 4) for first in range(0, 40, 4)])
    for epoch in range(4):
        assert sorted(seen[10 * epoch : 10 * epoch + 10]) == list(range(10))
    assert not np.array_equal(seen[:10], seen[10:20])
    assert np.array_equal(shuffled_rows(7, 10, 8, 14), seen[8:22])


def test_rewards_come_from_the_prompts_ground_truth(rollout: LanguageRollout) -> None:
    truths = [rollout._prompts.prompt("validation", index).ground_truth for index in range(3)]
    batch = answered(rollout, [f"1 is 1 ## {truths[0]}", f"2 ## {truths[2]}", "1+1=02"])
    batch, metrics, examples = rollout.judge(batch, "eval")
    assert batch["success"].tolist() == [True, False, False] and batch["scores"].tolist() == [1.0, 0.0, 0.0]
    assert metrics["rollout/success_rate"].value == pytest.approx(1 / 3)
    assert metrics["reward/answered"].value == pytest.approx(2 / 3)
    assert metrics["scores/arithmetic/pass@1"].value == pytest.approx(1 / 3)
    assert examples[0]["response"] == f"1 is 1 ## {truths[0]}" and examples[0]["prompt"].endswith("=")
    assert [row["correct"] for row in examples] == [True, False, False]


def test_pass_at_k_uses_several_answers_per_prompt(trainer: LanguageTrainer) -> None:
    rollout = LanguageRollout(language_config("evaluation.num_samples=3"), 0, 1)
    assert [question.index for question in rollout.evaluation_episodes("greedy")] == [0, 1, 2, 3]
    questions = rollout.evaluation_episodes("sampled")
    assert [question.index for question in questions] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    rollout.update_weights(trainer.weights() | trainer.probe(), version=0)
    batch = to_batch(rollout.play(questions, "eval", (0, "evaluate")))
    assert len(batch["seed"].unique()) == 12
    _, metrics, _ = rollout.judge(batch, "eval")
    assert metrics["scores/pass@3"].value >= metrics["scores/pass@1"].value and metrics["scores/num_prompts"].value == 4
    rollout.close()


def test_rerolled_groups_are_rewarded_like_the_first(trainer: LanguageTrainer) -> None:
    rollout = LanguageRollout(language_config("filter.num_groups=6", "filter.drop_uniform=false"), 0, 1)
    rollout.update_weights(trainer.weights() | trainer.probe(), version=0)
    call = call_of("dynamic_sampling", iteration=1, seed=0)
    first = tasks.compute_reward(sampled(rollout), worker=rollout).batch
    assert first is not None
    rows = tasks.dynamic_sampling(first, worker=rollout, call=call).batch
    assert rows is not None and len(rows) == 12 and len(rows["uid"].unique()) == 12
    assert rows["group_id"].unique(return_counts=True)[1].tolist() == [2] * 6
    assert torch.equal(rows["loss_mask"].flatten(1).sum(1), rows["response_length"])
    assert torch.equal(rows["rewards"].flatten(1).sum(1), rows["scores"])
    rollout.close()


def test_demonstrations_are_correct_answers(rollout: LanguageRollout) -> None:
    demos = rollout.demonstrate()
    assert demos["uid"].tolist() == [0, 1, 2, 3] and demos["terminated"].all()
    ends = demos["action_tokens"][np.arange(4), demos["response_length"] - 1, 0]
    assert set(ends) == {rollout.tokenizer.eos_token_id}
    batch = to_batch(demos)
    batch["prompt_id"] = batch["uid"]
    samples = rollout._samples(batch, "demo")
    assert all(score.correct for score in rollout._rewards.score(samples))
    with pytest.raises(ConfigError, match=r"max_response_tokens=9: a demonstration has \d\d tokens"):
        LanguageRollout(language_config("rollout.max_response_tokens=9"), 0, 1).demonstrate()


def change_head(weights: dict[str, np.ndarray]) -> None:
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        weights[name] = weights[name] * 1.01


def swap_layers(weights: dict[str, np.ndarray]) -> None:
    for name in [name for name in weights if ".layers.0." in name]:
        other = name.replace(".0.", ".1.")
        weights[name], weights[other] = weights[other], weights[name]


@pytest.mark.parametrize("fault", [change_head, swap_layers])
def test_weights_that_differ_from_the_trainers_are_refused(trainer: LanguageTrainer, fault) -> None:
    rollout, weights = LanguageRollout(CONFIG, 0, 1), trainer.weights()
    fault(weights)
    message = r"weights of version 5: log-probs .* differ by .* rollout worker 0 .* rollout.probe_tolerance=0.0001"
    with pytest.raises(ParityError, match=message):
        rollout.update_weights(weights | trainer.probe(), version=5)
    rollout.close()


def test_weights_of_an_old_version_are_refused(trainer: LanguageTrainer, rollout: LanguageRollout) -> None:
    old = trainer.weights()
    rows = sampled(rollout)
    rows["old_log_probs"] = rows["ref_log_probs"] = rows["log_probs"]
    rows["advantages"] = torch.ones_like(rows["log_probs"]) * rows["loss_mask"]
    trainer.step(rows, positions=np.arange(4), total_rows=4, seed=0)
    with pytest.raises(ParityError, match="version 4"):
        rollout.update_weights(old | trainer.probe(), version=4)
    rollout.update_weights(trainer.weights() | trainer.probe(), version=4)


def test_fitting_learns_the_demonstrations(rollout: LanguageRollout) -> None:
    config = language_config("warm_start.learning_rate=1e-2")
    policy, demos = CausalLMPolicy(config.policy, "cpu"), to_batch(rollout.demonstrate())
    samples, lengths = ResponseSamples(policy, demos, config), demos["response_length"].tolist()
    assert len(samples) == 4 and samples.num_targets(np.array([0, 0, 3])) == 2 * lengths[0] + lengths[3]
    early, late = (
        Imitation(policy.model, samples, config.warm_start, seed=0, part=0, num_parts=1).advance(60)["sft/loss"].value
        for _ in range(2)
    )
    assert 0 < late < 0.5 * early  # the mean over the last 50 steps


def test_held_out_prompts_are_the_last_of_the_demo_split_and_are_judged(trainer: LanguageTrainer) -> None:
    until = "warm_start.until={success:0.5,max_steps:9,num_held_out:5}"
    config = language_config(until, "rollout.num_workers=2")
    halves = [LanguageRollout(config, rank, 2) for rank in (0, 1)]
    number = halves[0]._prompts.num_prompts("demo")
    episodes = [half.held_out_episodes() for half in halves]
    assert sorted(each.index for part in episodes for each in part) == list(range(number - 5, number))
    assert [[each.row for each in part] for part in episodes] == [[0, 2, 4], [1, 3]]
    first = halves[0]
    first.update_weights(trainer.weights() | trainer.probe(), version=-4)
    outputs = [tasks.measure_warm_start(None, worker=first, call=call_of(iteration=0)) for _ in range(2)]
    measured = outputs[0].metrics["sft/success_rate"]
    assert measured.weight == 3 and measured == outputs[1].metrics["sft/success_rate"]
    row = to_batch(first.play(episodes[0][:1], "demo", (0, "warm start")))
    assert row["prompt_id"].tolist() == [number - 5]
    for half in halves:
        half.close()


def test_every_worker_needs_a_held_out_prompt() -> None:
    until = "warm_start.until={success:0.5,max_steps:9,num_held_out:1}"
    with pytest.raises(ConfigError, match=r"^warm_start.until.num_held_out must give each of rollout.num_workers=2"):
        language_config(until, "rollout.num_workers=2")


def test_demonstrations_and_held_out_prompts_must_fit_the_demo_split() -> None:
    number = build_prompt_source(CONFIG.data, None, CONFIG.rollout.max_prompt_tokens).num_prompts("demo")
    words = ("warm_start.until={success:0.5,max_steps:9,num_held_out:100}", f"warm_start.num_demos={number - 99}")
    message = (
        f"warm_start.num_demos={number - 99}: allowed are 1 to {number - 100}, the prompts of split 'demo' without the "
        "100 of warm_start.until.num_held_out"
    )
    with pytest.raises(ConfigError, match=f"^{message}$"):
        language_config(*words)


@pytest.mark.parametrize(
    ("override", "answer"),
    [
        ("warm_start.until={success:0.5,max_steps:2}", "until.max_steps=2: must be at least steps=3"),
        ("warm_start.until={success:0,max_steps:9}", "warm_start.until.success=0: input should be greater than 0"),
        ("evaluation.num_prompts=5000", "evaluation.num_prompts=5000: allowed are 1 to 1009"),
        ("policy.path=/nowhere", "policy: exactly one of path and scratch must be set"),
        ("policy.scratch.model_type=qwen33", "policy.scratch.model_type=qwen33: transformers has no such architecture"),
        ("rollout.max_response_tokens=200", "exceed policy.scratch.max_position_embeddings=128"),
        ("trainer.micro_batch_tokens=43", "must be at least 44, the tokens of rollout.max_prompt_tokens=16 and"),
        ("policy=tiny_vla", "policy.name=tiny_vla: allowed are causal_lm with job=language"),
        ("env=reacher", "env: only embodied and control jobs have it"),
    ],
)
def test_a_wrong_configuration_is_refused_in_one_line(override: str, answer: str) -> None:
    with pytest.raises(ConfigError) as caught:
        language_config(override)
    assert answer in str(caught.value) and len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["warm_start=null"], "evaluation.num_prompts=4: allowed are 1 to 2, the prompts of split 'validation' with"),
        (["evaluation.num_prompts=2"], "warm_start.num_demos=4: allowed are 1 to 2, the prompts of split 'demo' with"),
    ],
)
def test_a_worker_refuses_to_start_when_skipped_prompts_are_needed(
    overrides: list[str], message: str, tmp_path: Path
) -> None:
    questions = ["1+1=", "2+2=", "10+10+10+10+10=", "20+20+20+20+20="]  # the last two are too long
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"question": each, "answer": "2"}) + "\n" for each in questions))
    words = (
        *("data=gsm8k", "data.template='{question}'", "data.chat=false", "data.answer=whole", "data.too_long=skip"),
        *(f"data.{split}=[{file}]" for split in ("train", "validation", "demo")),
        *("data.shared_prompts=keep", "rollout.max_prompt_tokens=8", *overrides),
    )
    config = language_config(*words)
    with pytest.raises(ConfigError, match=message):
        LanguageRollout(config, 0, 1)
