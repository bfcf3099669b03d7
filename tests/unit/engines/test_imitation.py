"""What a policy is fitted to."""

import torch
from tensordict import TensorDict

from embodyflow.engines.imitation import Steps


def test_a_sample_is_a_step_with_the_actions_that_follow() -> None:
    actions = torch.arange(8.0).view(2, 4, 1)
    demos = TensorDict(
        {
            "state": 10 * actions,
            "actions": actions,
            "num_steps": torch.tensor([4, 2]),
            "instruction_ids": torch.tensor([[1], [2]]),
        },
        batch_size=[2],
    )
    samples = Steps(demos, ["state"], chunk_size=3)
    assert samples.observation["state"].flatten().tolist() == [0, 10, 20, 30, 40, 50]
    assert samples.observation["instruction_ids"].flatten().tolist() == [1, 1, 1, 1, 2, 2]
    followed = [chunk[mask].flatten().tolist() for chunk, mask in zip(samples.actions, samples.mask, strict=True)]
    assert followed == [[0, 1, 2], [1, 2, 3], [2, 3], [3], [4, 5], [5]]
