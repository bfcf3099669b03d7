"""Transcripts: the row of a conversation, with the model's tokens told apart."""

import pytest

from embodyflow.agents.transcript import Origin, Transcript
from embodyflow.generation.interface import Completion


def completion(*tokens, version=3):
    return Completion(tokens, tuple(-0.1 * token for token in tokens), "stop", version)


def test_a_conversation_becomes_one_row():
    transcript = Transcript((1, 2))
    transcript.append_sampled(completion(10, 11))
    transcript.append_given((20, 21, 22), Origin.TOOL)
    transcript.append_sampled(completion(12, version=2))
    transcript.append_given((23,), Origin.USER)  # no turn of the model follows

    response = transcript.response()

    assert transcript.tokens == (1, 2, 10, 11, 20, 21, 22, 12, 23) and transcript.num_new_tokens == 7
    assert response.tokens == (10, 11, 20, 21, 22, 12)
    assert response.origins == (Origin.MODEL,) * 2 + (Origin.TOOL,) * 3 + (Origin.MODEL,)
    assert response.log_probs == pytest.approx((-1.0, -1.1, 0, 0, 0, -1.2))
    assert response.policy_version == 2  # the oldest


def test_an_episode_without_a_turn_of_the_model_has_no_row():
    transcript = Transcript((1,))
    transcript.append_given((2,), Origin.USER)

    with pytest.raises(ValueError, match="at least one turn"):
        transcript.response()
