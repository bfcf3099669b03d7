"""Agents with weights of their own: who samples, who is trained, and what a checkpoint and an export hold."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from agent_rollouts import assert_trained_as_sampled, play, rollout_of
from episode_clients import KnownModel
from language_jobs import connected_trainer
from own_weights import agents_trainer, are_equal, mute, of_agents, own_config, rows_to_train_on, step
from ring_jobs import agent_config, ring_config
from safetensors.numpy import load_file
from tensordict import TensorDict
from trainers import free_address, spawn_ranks
from transformers import AutoModelForCausalLM

from embodyflow.agents.chat.call_journal import CallJournal
from embodyflow.agents.episode import EpisodeContext, Faults
from embodyflow.agents.tools.tool_runner import ToolRunner
from embodyflow.agents.workflow import ChatEngine
from embodyflow.config.agents.agent import AgentConfig, AgentJobConfig
from embodyflow.config.branch import BranchConfig
from embodyflow.data.batches import to_batch
from embodyflow.errors import ConfigError
from embodyflow.generation.agent_engines import AgentEngines
from embodyflow.orchestration.request.branching import _require_same_structure
from embodyflow.orchestration.request.compatibility import check_compatibility
from embodyflow.policies.language.causal_lm.agents_causal_lm import owners_of, reserved_names
from embodyflow.prompts.prompts import Prompt
from embodyflow.prompts.self_correct import build_tokenizer
from embodyflow.rewards.interface import Score
from embodyflow.rollouts.agents.agent_checks import check_agent
from embodyflow.types import Batch

TOKEN = 9
ACTOR = 2


@pytest.fixture(scope="module")
def config() -> AgentJobConfig:
    return own_config()


@pytest.fixture(scope="module")
def rows(config: AgentJobConfig) -> Batch:
    with agents_trainer(config) as trainer:
        return rows_to_train_on(config, trainer)


def test_each_turn_is_sampled_with_the_weights_of_its_agent(
    config: AgentJobConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with agents_trainer(config) as trainer:
        mute(trainer.policy.members["actor"].model, TOKEN)
        rollout = rollout_of(config, trainer)
        rows = to_batch(play(rollout))
        said = rows["action_tokens"][rows["token_agent"] == ACTOR]
        others = rows["action_tokens"][rows["token_agent"] == 1]
        assert len(said) and (said == TOKEN).all() and (others != TOKEN).any()
        assert_trained_as_sampled(rows, trainer)
        # An engine whose log-probs depend on the batch plays in rounds, which give the same tokens.
        monkeypatch.setattr(AgentEngines, "is_batch_invariant", lambda self: False)
        again = to_batch(play(rollout))
        assert torch.equal(again["action_tokens"], rows["action_tokens"])
        rollout.close()


def test_a_conversation_has_the_model_of_its_agent() -> None:
    models = {name: KnownModel(f"{number}+1") for number, name in enumerate(("one", "two"))}
    engine = ChatEngine(KnownModel(), build_tokenizer(), 16, 64, agents=("one", "two"), models=models)
    row = Prompt(7, None, [{"role": "user", "content": "27+95="}], "122", "self_correct")
    section = AgentConfig.model_validate({"max_turns": 2, "agents": ["one", "two"], "weights": "own"})
    context = EpisodeContext(
        5, 11, "train", 0, section, CallJournal(None), ToolRunner(), Faults(), lambda episode: Score(0.0, False)
    )
    said = [asyncio.run(engine.chat(row, [], context, agent=name).reply()) for name in ("two", "one")]
    assert said == ["1+1", "0+1"]


def test_an_agent_trains_as_if_the_others_did_not(config: AgentJobConfig, rows: Batch) -> None:
    with agents_trainer(config) as trainer:
        start = of_agents(trainer.weights())
        step(trainer, rows.clone())
        both = of_agents(trainer.weights())
    with agents_trainer(own_config("rollout.agent.train_cycle=2")) as trainer:
        digests = []
        for iteration in (1, 2, 3):
            metrics = step(trainer, rows.clone(), iteration)
            digests.append([metrics[f"policy/weights_digest/{name}"].value for name in ("reasoner", "actor")])
            if iteration == 1:
                alone = of_agents(trainer.weights())
            assert ("train/grad_norm/actor" in metrics) == (iteration == 3)
    assert are_equal(start[0], start[1]), "all agents begin alike"
    assert are_equal(both[0], alone[0]) and not are_equal(both[0], start[0])
    assert are_equal(alone[1], start[1]) and not are_equal(both[1], start[1])
    reasoner, actor = zip(*digests, strict=True)
    assert len({*reasoner[:2]}) == 2 and reasoner[2] == reasoner[1], "two iterations, then the next agent's turn"
    assert actor[0] == actor[1] != actor[2]


def test_training_two_agents_equals_two_trainings_of_one(config: AgentJobConfig, rows: Batch) -> None:
    with agents_trainer(config) as trainer:
        start = of_agents(trainer.weights())
        step(trainer, rows.clone())
        ends = of_agents(trainer.weights())
    for number, (before, after) in enumerate(zip(start, ends, strict=True), 1):
        with connected_trainer(ring_config("ring_jobs:Digits")) as trainer:
            trainer.policy_weights.load(before)
            step(trainer, alone(rows, number))
            expected = trainer.weights()
        moved = max(np.abs(after[name] - before[name]).max() for name in after)
        gap = max(np.abs(after[name] - expected[name]).max() for name in after)
        assert moved > 1e-4 and gap < 1e-3 * moved


def alone(rows: Batch, number: int) -> Batch:
    """Return the rows of one agent, made by hand: nobody else's contexts, and its own numbered from 0."""
    kept = []
    for row in rows:
        length = int(row["response_length"])
        contexts, writers = (row[name][:length, 0].tolist() for name in ("token_context", "token_agent"))
        mine = [
            context
            for context in sorted({*contexts})
            if number in [w for w, c in zip(writers, contexts, strict=True) if c == context]
        ]
        places = [place for place, context in enumerate(contexts) if context in mine]
        one = row.clone()
        for name in ("action_tokens", "loss_mask", "token_agent", "old_log_probs", "ref_log_probs", "advantages"):
            one[name] = torch.zeros_like(row[name])
            one[name][: len(places)] = row[name][places]
        one["token_context"] = torch.zeros_like(row["token_context"])
        one["token_context"][: len(places), 0] = torch.tensor([contexts[place] for place in places])
        one["response_length"] = torch.tensor(len(places))
        kept.append(one)
    return torch.stack(kept)


def test_a_checkpoint_restores_every_bit(config: AgentJobConfig, rows: Batch, tmp_path: Path) -> None:
    with agents_trainer(config) as trainer:
        trainer.save(str(tmp_path / "0"))
        step(trainer, rows.clone())
        trainer.save(str(tmp_path / "1"), whole=False)
        step(trainer, rows.clone(), 2)
        expected, reference = trainer.weights(), trainer.log_probs(rows, reference=True)
    with agents_trainer(config) as trainer:
        step(trainer, rows.clone(), 7)
        trainer.load_reference(str(tmp_path / "0"))
        trainer.load(str(tmp_path / "1"))
        step(trainer, rows.clone(), 2)
        assert are_equal(trainer.weights(), expected)
        assert torch.equal(trainer.log_probs(rows, reference=True), reference)


def test_an_export_has_a_folder_for_each_agent_and_a_warm_start_reaches_all(
    config: AgentJobConfig, rows: Batch, tmp_path: Path
) -> None:
    with agents_trainer(config) as trainer:
        step(trainer, rows.clone())
        trainer.save_pretrained(str(tmp_path))
        for name, weights in zip(config.agents, of_agents(trainer.weights()), strict=True):
            state = AutoModelForCausalLM.from_pretrained(tmp_path / name).state_dict()
            assert all(np.array_equal(state[each].numpy(), weights[each]) for each in weights)
        assert not are_equal(*of_agents(trainer.weights()))
        with trainer.policy_weights.warm_starting():
            assert trainer._policy_to_fit is trainer.policy.members["reasoner"].policy
        assert are_equal(*of_agents(trainer.weights()))


def test_a_critic_begins_with_the_weights_of_the_first_agent() -> None:
    with agents_trainer(own_config("algorithm=ppo", "algorithm.advantage=marft", "critic.epochs=1")) as trainer:
        with torch.no_grad():
            trainer.policy.members["reasoner"].model.get_input_embeddings().weight.fill_(0.5)
        trainer._restart_from_policy()
        assert (trainer.critic.model.get_input_embeddings().weight == 0.5).all()


def train_on_two_ranks(rank: int, address: str, folder: Path) -> None:
    rows = torch.load(folder / "rows.pt", weights_only=False)
    mine = np.arange(rank, len(rows), 2)
    with agents_trainer(own_config("trainer.num_ranks=2"), rank, address, 2) as trainer:
        for iteration in (1, 2):
            trainer.save(str(folder / f"{iteration}"))
            trainer.step(
                rows[torch.from_numpy(mine)].clone(),
                positions=mine,
                total_rows=len(rows),
                seed=iteration,
                iteration=iteration,
            )
        trainer.save_weights_file(str(folder / "weights"))
        trainer.load(str(folder / "2"))
        trainer.load_reference(str(folder / "1"))
        trainer.step(rows[torch.from_numpy(mine)].clone(), positions=mine, total_rows=len(rows), seed=2, iteration=2)
        trainer.save_weights_file(str(folder / "again"))


@pytest.mark.slow
def test_two_ranks_train_as_one(config: AgentJobConfig, rows: Batch, tmp_path: Path) -> None:
    rows = rows.clone()
    rows["loss_mask"][1::2] &= rows["token_agent"][1::2] == 1  # the second rank has no token of the actor
    torch.save(rows, tmp_path / "rows.pt")
    with agents_trainer(config) as trainer:
        for iteration in (1, 2):
            step(trainer, rows.clone(), iteration)
        expected = trainer.weights()
    spawn_ranks(train_on_two_ranks, free_address(), tmp_path, num_ranks=2)
    weights = load_file(tmp_path / "weights")
    assert are_equal(weights, load_file(tmp_path / "again")), "a restored checkpoint goes on with the same bits"
    assert max(np.abs(weights[name] - each).max() for name, each in expected.items()) < 1e-6


def test_a_branch_keeps_the_kind_of_weights(config: AgentJobConfig) -> None:
    branch = BranchConfig(run="first")
    shared = ring_config("ring_jobs:Digits").model_copy(update={"branch": branch})
    with pytest.raises(
        ConfigError, match=r"^rollout.agent.weights=shared: the run first has own, which a branch keeps"
    ):
        _require_same_structure(config, shared)
    _require_same_structure(config, config.model_copy(update={"branch": branch}))


def test_owners_are_those_who_wrote_in_a_context() -> None:
    columns = {
        "token_context": [[[0], [0], [1], [1], [2], [2], [0]]],
        "token_agent": [[[1], [1], [0], [2], [0], [1], [0]]],
        "loss_mask": [[[True], [True], [False], [True], [False], [True], [False]]],
    }
    rows = TensorDict({name: torch.tensor(each) for name, each in columns.items()}, batch_size=[1])
    rows["response_length"] = torch.tensor([6])
    assert owners_of(rows).tolist() == [[1, 1, 2, 2, 1, 1, 0]]
    rows["token_agent"][0, 3] = 0
    with pytest.raises(ValueError, match="token_agent: a token of the model is in the context of no agent"):
        owners_of(rows)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("rollout.agent.weights=mine",), "rollout.agent.weights='mine': "),
        (
            ("rollout.agent.weights=shared", "rollout.agent.train_cycle=2"),
            "rollout.agent.train_cycle=2: allowed is null",
        ),
        (("rollout.agent.train_cycle=0",), "rollout.agent.train_cycle=0: "),
        (
            ("rollout.generation={name: vllm}",),
            "rollout.generation.name=vllm: allowed with rollout.agent.weights=own is hf",
        ),
        (("trainer.lora={rank: 4}",), "trainer.lora: allowed with rollout.agent.weights=own is null"),
        (
            ("algorithm.kl={coef: 0.1, target: 0.1}",),
            "algorithm.kl.target: allowed with rollout.agent.weights=own is null",
        ),
    ],
)
def test_a_mistake_is_one_line(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        own_config(*words)
    assert str(refusal.value).startswith(message) and "\n" not in str(refusal.value)


def test_own_weights_need_agents_with_possible_names() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.agent\.weights=own: needs at least two agents"):
        agent_config("rollout.agent.weights=own")
    assert reserved_names(["reasoner", "keys", "training"]) == ["keys", "training"]
    with pytest.raises(
        ConfigError, match=r"rollout\.agent\.agents: keys is reserved in the models of rollout.agent.wei"
    ):
        check_agent(own_config(members="{keys: {}, two: {}}"))


JOINT_STEPS = """
dag_id: mine
nodes:
  - {node_id: rollout, executable_ref: "tasks:generate", node_type: model_inference, node_role: rollout}
  - {node_id: reward, executable_ref: "tasks:compute_reward", node_type: compute, dependencies: [rollout]}
  - {node_id: value, executable_ref: "tasks:compute_value", node_type: model_train, node_role: critic,
     dependencies: [reward], only_forward_compute: true}
  - {node_id: advantage, executable_ref: "tasks:compute_advantage", node_type: compute, dependencies: [value]}
  - {node_id: old, executable_ref: "tasks:compute_old_log_prob", node_type: model_train, node_role: actor,
     dependencies: [advantage], only_forward_compute: true}
  - {node_id: ref, executable_ref: "tasks:compute_ref_log_prob", node_type: model_train, node_role: reference,
     dependencies: [old]}
  - {node_id: both, executable_ref: "tasks:%s", node_type: model_train, node_role: actor, dependencies: [ref]}
"""


def test_steps_of_policy_and_critic_together_are_refused_before_the_start(tmp_path: Path) -> None:
    (graph := tmp_path / "graph.yaml").write_text(JOINT_STEPS % "train_actor_critic")
    config = own_config(f"pipeline.yaml={graph}", "algorithm.advantage=gae")
    with pytest.raises(ConfigError, match=r"^rollout.agent.weights=own: node 'both' trains policy and critic in the"):
        check_compatibility(config)
    graph.write_text(JOINT_STEPS % "train_actor")
    check_compatibility(config)
