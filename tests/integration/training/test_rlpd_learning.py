"""RLPD on episodes: success of its own sampled episodes, which the noise of the policy must not spoil."""

from statistics import mean

import pytest

from benchmarks.control.in_process import InProcessRun


@pytest.mark.slow
def test_sampled_and_greedy_success_rise_from_four_demonstrations() -> None:
    run = InProcessRun(["experiment=push", "algorithm=rlpd", "seed=100"])
    run.warm_start()
    before = mean(run.success())
    rates = [run.iterate(iteration)["rollout/success_rate"] for iteration in range(1, 13)]
    after = mean(run.success())
    run.rollout.close()
    run.trainer.close()
    assert mean(rates[-3:]) > 0.4 > mean(rates[:3])  # a temperature of 0.01 leaves 0.1 of them
    assert after > before + 0.2
