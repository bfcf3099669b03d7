"""Instructions of several tasks, as a policy reads them."""

import re

import pytest

from embodyflow.errors import ConfigError
from embodyflow.policies.embodied.tiny_vla.configuration_tiny_vla import TinyVLAConfig
from embodyflow.policies.embodied.tiny_vla.policy_tiny_vla import TinyVLAPolicy
from embodyflow.rollouts.embodied.instructions import encoded_instructions


def policy(vocab_size: int) -> TinyVLAPolicy:
    config = TinyVLAConfig(chunk_size=1, action_dim=1, state_dim=1, hidden_size=8, num_layers=1, vocab_size=vocab_size)
    return TinyVLAPolicy(config, "cpu")


def test_different_instructions_that_the_policy_reads_alike_are_refused() -> None:
    """With two buckets every word of a hash is the same one."""
    instructions = {"a": "open the drawer", "b": "close the drawer"}
    told = (
        "env.tasks: the policy reads the instructions of 'a' and 'b' alike, 'open the drawer' and 'close the drawer'; "
        "allowed are other words"
    )
    with pytest.raises(ConfigError, match=re.escape(told)):
        encoded_instructions(policy(2), instructions)
    ids = encoded_instructions(policy(512), instructions)
    assert ids.shape == (2, 16) and (ids[0] != ids[1]).tolist() == [True] + 15 * [False]


def test_tasks_may_share_an_instruction() -> None:
    ids = encoded_instructions(policy(512), {"kitchen": "turn on the stove", "study": "turn on the stove"})
    assert (ids[0] == ids[1]).all()
