"""Transcripts: the row of an episode, with the model's tokens told apart."""

import pytest

from embodyflow.agents.chat.transcript import Origin, Transcript
from embodyflow.agents.episode import Counts, Episode
from embodyflow.generation.interface import Completion
from embodyflow.rollouts.agents.agent_rows import Played, columns_of_episodes


def completion(*tokens, version=3):
    return Completion(tokens, tuple(-0.1 * token for token in tokens), "stop", version)


def test_a_conversation_becomes_one_row():
    transcript = Transcript((1, 2))
    transcript.append_sampled(completion(10, 11))
    transcript.append_given((20, 21, 22), Origin.TOOL)
    transcript.append_sampled(completion(12, version=2))
    transcript.append_given((23,), Origin.USER)  # no turn of the model follows

    response = transcript.response()

    assert transcript.tokens_of() == (1, 2, 10, 11, 20, 21, 22, 12, 23) and transcript.num_new_tokens == 7
    assert response.tokens == (10, 11, 20, 21, 22, 12) and response.contexts == (0,) * 6
    assert response.origins == (Origin.MODEL,) * 2 + (Origin.TOOL,) * 3 + (Origin.MODEL,)
    assert response.turns == (1, 1, 0, 0, 0, 2)
    assert response.log_probs == pytest.approx((-1.0, -1.1, 0, 0, 0, -1.2))
    assert response.policy_version == 2  # the oldest


def two_agents(first="", second=""):
    """Return an episode in which context 0 waits for context 3; contexts 1 and 2 have no turn of the model."""
    transcript = Transcript()
    begun = ((1, 2), first), ((40,), "silent"), ((41,), second), ((30, 31), second)
    assert [transcript.begin(tokens, agent) for tokens, agent in begun] == [0, 1, 2, 3]
    transcript.append_sampled(completion(10))
    transcript.append_sampled(completion(32), context=3)
    transcript.append_given((33,), Origin.USER, context=3)  # nobody answers
    transcript.append_given((20,), Origin.TOOL)
    transcript.append_sampled(completion(11, 12))
    return transcript


def test_contexts_keep_the_order_of_time_and_end_with_the_model():
    transcript = two_agents()
    response = transcript.response()

    assert transcript.prompt == (1, 2) and transcript.num_contexts == 4 and transcript.num_turns == 3
    assert transcript.tokens_of(3) == (30, 31, 32, 33) and transcript.tokens_of() == (1, 2, 10, 20, 11, 12)
    assert response.tokens == (30, 31, 10, 32, 20, 11, 12)
    assert response.contexts == (1, 1, 0, 1, 0, 0, 0)
    assert response.turns == (0, 0, 1, 2, 0, 3, 3)
    template, model, tool = Origin.TEMPLATE, Origin.MODEL, Origin.TOOL
    assert response.origins == (template, template, model, model, tool, model, model)


def test_rewards_of_turns_are_on_their_last_tokens():
    episode = Episode(two_agents(), True, turn_rewards=(0.5, 0.0, -1.0))
    columns = columns_of_episodes([Played(episode, Counts(turns=3), seed=0)])

    assert columns["token_turn_reward"][0, :, 0].tolist() == [0, 0, 0.5, 0, 0, 0, -1]
    assert columns["loss_mask"][0, :, 0].tolist() == [False, False, True, True, False, True, True]
    assert columns["token_context"].dtype == columns["token_turn"].dtype == "int32"


def test_tokens_and_outcomes_belong_to_agents():
    episode = Episode(two_agents("ann", "bob"), True, 0.5, agent_rewards={"bob": -1.0, "silent": 3.0, "ann": 2.0})
    assert episode.transcript.writers == {"ann", "bob"}
    unnamed = Episode(two_agents(), True, 0.5)
    columns = columns_of_episodes([Played(each, Counts(turns=3), 0) for each in (episode, unnamed)], ("bob", "ann"))

    assert columns["token_agent"][..., 0].tolist() == [[0, 0, 2, 1, 0, 2, 2], [0] * 7]
    assert columns["token_agent_reward"][..., 0].tolist() == [[0, 0, 0, -1, 0, 0, 2], [0] * 7]
    assert columns["agents_rewarded"].tolist() == [True, False]
    assert columns["token_agent"].dtype == "int32" and columns["token_agent_reward"].dtype == "float32"


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ({"agent_rewards": {"ann": 1.0}}, "agent_rewards: '' wrote a turn and has no reward; each agent needs one"),
        ({"agent_rewards": {"": float("nan")}}, "must be finite"),
        ({"turn_rewards": (1.0,)}, "turn_rewards: 1 for 3 turns; each turn needs one"),
        ({"turn_rewards": (1.0, float("nan"), 0.0)}, "must be finite"),
        ({"reward": float("inf")}, "reward=inf: must be finite"),
        ({"reward": 1e39}, r"reward=1e\+39: must be finite, also in float32"),
    ],
)
def test_rewards_that_cannot_be_trained_on_are_refused(rewards, message):
    with pytest.raises(ValueError, match=message):
        Episode(two_agents(), True, **rewards)


def test_an_episode_without_a_turn_of_the_model_has_no_row():
    transcript = Transcript((1,))
    transcript.append_given((2,), Origin.USER)

    with pytest.raises(ValueError, match="at least one turn"):
        transcript.response()
    with pytest.raises(ValueError, match="context=1: the episode has 1 contexts"):
        transcript.append_given((2,), Origin.USER, context=1)
    with pytest.raises(ValueError, match="at least one token"):
        transcript.begin(())
