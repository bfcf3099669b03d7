"""Episodes in a Gymnasium environment by text, with a real engine: rows, demonstrations, failures, refusals."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import text_envs
from agent_jobs import agent_config
from agent_rollouts import play
from trainers import free_address

from embodyflow.agents.chat.transcript import Origin
from embodyflow.config.agents.agent import AgentJobConfig
from embodyflow.data.batches import Columns, to_batch
from embodyflow.data.tables import digest_of
from embodyflow.errors import ConfigError
from embodyflow.rollouts.agents.agent_rollout import AgentRollout
from embodyflow.training.language_trainer import LanguageTrainer

NAMES = ("back", "on")
WORDS = (
    *("data=seeds", "reward=workflow", "data.num_validation=8", "data.num_demos=6", "rollout.max_prompt_tokens=40"),
    *("policy.tokenizer=embodyflow.agents.gymnasium.minigrid_text:build_tokenizer", "rollout.agent.max_turns=5"),
    *(
        "rollout.agent.tools=[]",
        "rollout.agent.workflow=embodyflow.agents.gymnasium.gymnasium_episode:GymnasiumEpisode",
    ),
    *("rollout.max_response_tokens=200", "policy.scratch.max_position_embeddings=256", "rollout.group_size=4"),
)
GAME = {
    "id": "text_envs:Corridor-v0",
    "observation": "[" + ", ".join(text_envs.PLACES) + "]",
    "actions": "[back, 'on']",  # a bare on is true in YAML
    "expert": "text_envs:always_on",
}


def section(**values: str) -> str:
    game = {**GAME, **values}
    return f"+rollout.agent.gymnasium={{{', '.join(f'{key}: {value}' for key, value in game.items() if value)}}}"


def episode_config(*overrides: str, **values: str) -> AgentJobConfig:
    return agent_config(*WORDS, section(**values), *overrides)


@pytest.fixture(scope="module")
def trainer() -> Iterator[LanguageTrainer]:
    trainer = LanguageTrainer(episode_config(), 0, 1)
    trainer.connect(free_address())
    yield trainer
    trainer.close()


@pytest.fixture
def rollout(trainer: LanguageTrainer) -> Iterator[AgentRollout]:
    rollout = AgentRollout(episode_config("rollout.agent.max_turn_tokens=2"), 0, 1)
    rollout.update_weights(trainer.weights() | trainer.probe(), version=0)
    yield rollout
    rollout.close()


def texts_of(rollout: AgentRollout, rows: Columns) -> list[str]:
    """Return the conversations without their special tokens around messages."""
    whole = []
    for prompt, length, response, end in zip(
        rows["prompt_tokens"], rows["prompt_length"], rows["action_tokens"], rows["response_length"], strict=True
    ):
        whole.append(rollout.tokenizer.decode([*prompt[:length], *response[:end, 0]]))
    return whole


def test_the_expert_demonstrates_in_the_environment_of_each_seed() -> None:
    rollout = AgentRollout(episode_config(), 0, 1)
    rows = rollout.demonstrate()
    texts = texts_of(rollout, rows)
    # The seeds are 8 to 11, and a corridor begins at its seed modulo 3.
    assert [text.count("<assistant>") for text in texts] == rows["num_turns"].tolist() == [2, 4, 3, 2]
    assert texts[0].endswith("<user>place 2<end><assistant>on<end><user>place 3<end><assistant>on<end>")
    assert rows["own_success"].all() and rows["terminated"].all() and (rows["own_reward"] == 1).all()
    rollout.close()


def test_siblings_begin_alike_and_only_the_models_tokens_are_trained_on(rollout: AgentRollout) -> None:
    rows = to_batch(play(rollout))
    for group in rows["group_id"].unique():
        siblings = rows[rows["group_id"] == group]
        assert (siblings["prompt_tokens"] == siblings["prompt_tokens"][0]).all()
    assert rows["rewarded"].all() and (rows["num_turns"] <= 5).all()
    own = rows["token_origin"][..., 0] == Origin.MODEL
    assert not (rows["loss_mask"][..., 0] & ~own).any()
    assert (rows["terminated"] == rows["own_success"]).all()  # the goal ends an episode, and nothing else does


def test_failures_of_the_environment_do_not_change_the_rows(rollout: AgentRollout) -> None:
    expected = play(rollout)
    none = {name: metric.value for name, metric in rollout.fault_metrics().items()}
    seeds = {rollout._prompts.prompt("train", index).row["seed"] for index in expected["prompt_id"].tolist()}
    text_envs.FAULTS.update({(seed, 0): ["error"] for seed in seeds})

    rows = play(rollout)

    assert digest_of(rows) == digest_of(expected) and not any(text_envs.FAULTS.values())
    faults = {name: metric.value for name, metric in rollout.fault_metrics().items()}
    assert (none["perf/tool_retries"], none["perf/redrawn_episodes"]) == (0, 0)
    assert (faults["perf/tool_retries"], faults["perf/redrawn_episodes"]) == (len(seeds), 0)


def test_a_turn_that_names_no_action_is_a_mistake(rollout: AgentRollout, monkeypatch: pytest.MonkeyPatch) -> None:
    async def turns(row: object) -> tuple[str, ...]:
        return "left", "on", "on", "on", "on"

    monkeypatch.setattr(rollout._workflow, "demonstrate", turns)
    with pytest.raises(ConfigError, match="demonstration 0, seed 8: a call in it is a mistake"):
        rollout.demonstrate()


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"expert": ""}, "expert: must be set for a warm start, which demonstrates; or set warm_start=null"),
        ({"expert": "text_envs:always_back"}, "no success with seed .* within 5 steps; allow more with rollout.agent"),
        ({"expert": "text_envs:always_waiting"}, "ValueError: action 2 has no name; names are back, on"),
    ],
)
def test_an_expert_that_cannot_demonstrate_is_refused(values: dict[str, str], reason: str) -> None:
    rollout = AgentRollout(episode_config(**values), 0, 1)
    with pytest.raises(ConfigError, match=reason):
        rollout.demonstrate()
    rollout.close()


DRIFTS = {"kwargs": "{text: true, drifts: true}", "observation": "", "actions": "", "expert": ""}


@pytest.mark.parametrize(
    ("words", "values", "reason"),
    [
        ((), {"id": "NoSuchGame-v0"}, r"rollout\.agent\.gymnasium\.id=NoSuchGame-v0: "),
        ((), {"expert": "text_envs:nobody"}, r"rollout\.agent\.gymnasium\.expert=text_envs:nobody: .*no attribute"),
        ((), {"observation": "text_envs:always_on"}, r"rollout\.agent\.gymnasium\.id=\S+: its first observation: Type"),
        ((), DRIFTS, r"rollout\.agent\.gymnasium\.id=\S+: two resets with seed 0 give 'place 0 \d+' and 'place 0 \d+'"),
        (("rollout.agent.gymnasium=null",), {}, r"rollout\.agent\.gymnasium: must be set for the workflow"),
        (
            ("rollout.agent.workflow=embodyflow.agents.tool_loop:ToolLoop",),
            {},
            r"rollout\.agent\.gymnasium: needs a workflow",
        ),
    ],
)
def test_mistakes_are_one_line_before_anything_starts(
    words: tuple[str, ...], values: dict[str, str], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason) as refusal:
        episode_config(*words, **values)
    assert len(str(refusal.value).splitlines()) == 1


def test_rows_without_a_seed_are_refused() -> None:
    words = [word for word in WORDS if not word.startswith(("data", "reward=", "policy.tokenizer"))]
    with pytest.raises(ConfigError, match=r"^data: the workflow GymnasiumEpisode needs rows with a number seed"):
        agent_config(*words, section())
