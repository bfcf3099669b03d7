"""Workflow classes of AReaL with a real engine and trainer in one process."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from agent_jobs import TURN_TOKENS, agent_config
from agent_rollouts import play
from areal_workflows import SEEN, Spoiled
from trainers import free_address

from embodyflow.agents.areal.generation_shapes import GenerationHyperparameters, ModelResponse
from embodyflow.agents.chat.transcript import Origin
from embodyflow.agents.workflow_registry import build_workflow
from embodyflow.config.agents.agent import AgentConfig
from embodyflow.data.batches import to_batch
from embodyflow.errors import ConfigError, EpisodeError
from embodyflow.rollouts.agents.agent_rollout import AgentRollout
from embodyflow.training.language_trainer import LanguageTrainer

KWARGS = {"reward_fn": "areal_workflows:count_digits", "max_turns": 3}


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[AgentRollout, LanguageTrainer]]:
    config = agent_config("warm_start=null", "rollout.agent.tools=[]", "rollout.agent.workflow=areal_workflows:Open")
    trainer = LanguageTrainer(config, 0, 1)
    trainer.connect(free_address())
    rollout = AgentRollout(config, 0, 1)
    rollout.update_weights(trainer.weights() | trainer.probe(), version=3)
    yield rollout, trainer
    trainer.close()
    rollout.close()


@pytest.fixture
def rollout(engines) -> AgentRollout:
    return use(engines[0], "Retry")


def use(rollout: AgentRollout, name: str, kwargs: dict[str, object] = KWARGS, **agent: int) -> AgentRollout:
    """Let a rollout play another workflow."""
    values = {"max_turns": 3, "max_turn_tokens": TURN_TOKENS, "workflow": f"areal_workflows:{name}", **agent}
    rollout._agent = AgentConfig.model_validate({**values, "workflow_kwargs": kwargs})
    rollout._workflow = build_workflow(rollout._agent)
    return rollout


def test_rows_have_the_sampled_tokens_and_the_workflows_reward(engines, rollout) -> None:
    rows = to_batch(play(rollout))

    assert rows["num_turns"].tolist() == [3] * 4 and (rows["policy_version"] == 3).all()
    assert torch.equal(
        rows["loss_mask"][..., 0],
        (rows["token_origin"][..., 0] == Origin.MODEL)
        & (torch.arange(rows["loss_mask"].shape[1]) < rows["response_length"][:, None]),
    )
    again = rollout.tokenizer("error: ", add_special_tokens=False)["input_ids"]
    for row in rows:
        tokens, origins = row["action_tokens"][:, 0].tolist(), row["token_origin"][:, 0].tolist()
        given = [token for token, origin in zip(tokens, origins, strict=True) if origin == Origin.USER]
        assert given == again * 2
        last = tokens[max(n for n, o in enumerate(origins) if o == Origin.USER) + 1 : row["response_length"]]
        assert row["own_reward"] == sum(c.isdigit() for c in rollout.tokenizer.decode(last)) / 4
    with torch.no_grad():
        theirs, _ = engines[1].policy.evaluate(rows, 1.0)
    assert (theirs - rows["log_probs"]).abs().max() < 1e-5
    data = SEEN[-1]
    assert data["messages"][0]["role"] == "user" and data["answer"].isdigit()


def test_rejected_episodes_are_drawn_again_and_groups_keep_their_size(rollout) -> None:
    expected = play(rollout)
    rows = play(use(rollout, "Picky", max_redraws=20))

    odd = expected["loss_mask"].sum((1, 2)) % 2 == 1
    assert odd.any() and (rows["loss_mask"].sum((1, 2)) % 2 == 0).all()
    assert (rows["seed"] != expected["seed"]).tolist() == odd.tolist()
    assert np.array_equal(rows["group_id"], expected["group_id"])
    faults = {name: metric.value for name, metric in rollout.fault_metrics().items()}
    assert faults["perf/rejected_episodes"] >= odd.sum() and faults["perf/redrawn_episodes"] == 0


def test_a_workflow_that_rejects_all_draws_ends_the_run(rollout, monkeypatch) -> None:
    monkeypatch.setattr(Spoiled, "spoil", staticmethod(lambda result: None))
    use(rollout, "Spoiled")
    with pytest.raises(EpisodeError, match=r"episode \d+: .*rejected 3 times; rollout.agent.max_redraws=2 allows no"):
        play(rollout)

    rows = rollout.play(rollout.evaluation_episodes(), "eval", None)  # greedy, so another draw would be the same
    assert rows["truncated"].all() and (rows["own_reward"] == 0).all() and rows["rewarded"].all()
    assert rows["loss_mask"].any((1, 2)).all()


def test_calls_of_an_episode_run_in_order_and_one_may_be_left_out(rollout) -> None:
    rows = play(use(rollout, "BestOfTwo"))

    assert rows["num_turns"].tolist() == [2] * 4
    assert np.array_equal(rows["loss_mask"].sum((1, 2)), rows["response_length"])


def test_an_episode_without_room_is_cut(rollout) -> None:
    rows = play(use(rollout, "Retry", {**KWARGS, "max_turns": 40}))

    assert rows["truncated"].all() and rows["response_length"].max() <= 110
    assert (rows["num_turns"] < 40).all()


def changed(**values):
    def spoil(result):
        return {name: values.get(name, lambda tensor: tensor)(tensor.clone()) for name, tensor in result.items()}

    return staticmethod(spoil)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (changed(input_ids=lambda t: t + 1), "loss_mask: the model did not sample token .* after the tokens before it"),
        (changed(loss_mask=lambda t: torch.ones_like(t)), "loss_mask: the model did not sample token 0 after"),
        (changed(loss_mask=lambda t: torch.zeros_like(t)), "loss_mask: trains on no token"),
        (changed(logprobs=lambda t: t - 0.01), "logprobs: token .* was sampled with another log-prob"),
        (changed(logprobs=lambda t: t * float("nan")), "logprobs: token .* was sampled with another log-prob"),
        (changed(rewards=lambda t: t.repeat(2)), "rewards must have one value, has 2"),
        (changed(loss_mask=lambda t: t[:, 1:]), r"loss_mask must have the shape \[1, \d+\], has \[1, \d+\]"),
        (staticmethod(lambda result: {}), "returned no input_ids, loss_mask, logprobs, rewards"),
        (staticmethod(lambda result: 1.0), "must return tensors by name, or None, gave float"),
    ],
)
def test_a_result_that_is_not_what_was_sampled_ends_the_run(rollout, monkeypatch, spoil, message) -> None:
    monkeypatch.setattr(Spoiled, "spoil", spoil)
    with pytest.raises(EpisodeError, match=message):
        play(use(rollout, "Spoiled"))


def test_part_of_what_was_sampled_may_be_left_out_of_the_loss(rollout, monkeypatch) -> None:
    def first_token_and_last_turn(mask):
        mask[0, mask[0].nonzero()[1:-2]] = 0
        return mask

    monkeypatch.setattr(Spoiled, "spoil", changed(loss_mask=first_token_and_last_turn))
    rows = play(use(rollout, "Spoiled"))

    assert rows["loss_mask"].sum((1, 2)).tolist() == [3] * 4 and rows["loss_mask"][:, 0].all()


@pytest.mark.parametrize(
    ("changes", "parameter"),
    [
        ({"n_samples": 2}, "n_samples=2"),
        ({"temperature": 0.7}, "temperature=0.7"),
        ({"greedy": True}, "greedy=True"),
        ({"top_p": 0.9}, "top_p=0.9"),
        ({"top_k": 5}, "top_k=5"),
        ({"stop": ["."]}, r"stop=\['.'\]"),
        ({"stop_token_ids": [9]}, r"stop_token_ids=\[9\]"),
        ({"frequency_penalty": 0.5}, "frequency_penalty=0.5"),
    ],
)
def test_a_request_for_another_way_of_sampling_is_refused(rollout, monkeypatch, changes, parameter) -> None:
    new = GenerationHyperparameters.new
    monkeypatch.setattr(GenerationHyperparameters, "new", lambda self, **kwargs: new(self, **{**kwargs, **changes}))
    with pytest.raises(EpisodeError, match=f"gconfig.{parameter}: a run samples by rollout.temperature alone"):
        play(rollout)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (
            {},
            "rollout.agent.workflow=areal_workflows:Retry: needs reward_fn, max_turns; set rollout.agent.work",
        ),
        (
            {"reward_fn": "areal_workflows:count", "max_turns": 1},
            "workflow_kwargs.reward_fn: areal_workflows:count: .*no attribute 'count'",
        ),
        (
            {"reward_fn": "areal_workflows:count_digits", "max_turns": 1, "turns": 2},
            "workflow_kwargs.turns: areal_workflows:Retry has no such argument; allowed are reward_fn, gconfig, token",
        ),
        (
            {"reward_fn": "areal_workflows:count_digits", "max_turns": 1, "gconfig": {"beams": 2}},
            "workflow_kwargs.gconfig: .*unexpected keyword argument 'beams'",
        ),
    ],
)
def test_wrong_arguments_are_one_line_before_anything_starts(kwargs, message) -> None:
    with pytest.raises(ConfigError, match=message):
        build_workflow(AgentConfig(max_turns=1, workflow="areal_workflows:Retry", workflow_kwargs=kwargs))
    build_workflow(AgentConfig(max_turns=1, workflow="areal_workflows:Open", workflow_kwargs={"anything": 1}))


def test_arguments_of_a_workflow_of_our_own_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"workflow_kwargs: .*ToolLoop takes no such arguments; allowed is {}"):
        build_workflow(AgentConfig(max_turns=1, workflow_kwargs={"max_turns": 2}))
    with pytest.raises(ConfigError, match=r"must be a class with async def run.*or AReaL's arun_episode\(engine, data"):
        build_workflow(AgentConfig(max_turns=1, workflow="areal_workflows:count_digits"))


def test_a_response_has_areals_properties() -> None:
    response = ModelResponse([1, 2], [3, 4], [-0.1, -0.2], [5, 5], "stop")
    assert (response.input_len, response.output_len, response.output_tokens_without_stop) == (2, 2, [3])
    response = ModelResponse([1, 2], [3, 4], [-0.1, -0.2], [5, 5], "length")
    assert response.output_tokens_without_stop == [3, 4]
