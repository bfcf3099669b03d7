"""Summaries of finished runs."""

import pytest

from embodyflow.config.summary import return_line, return_summary, task_summary


@pytest.mark.parametrize(
    ("rewards", "line"),
    [
        ([-39.04, -17.7], "return first=-39.0 last=-17.7 seed=3 seconds=12"),
        ([], "return first=none last=none seed=3 seconds=12"),  # a run that is shorter than an episode
    ],
)
def test_returns_come_from_iterations_with_finished_episodes(rewards: list[float], line: str) -> None:
    records = [{"iteration": 1}, *({"rollout/reward": reward} for reward in rewards), {"iteration": 9}]
    assert return_line(return_summary(records) | {"seed": 3, "train_seconds": 12.3}) == line


def test_the_summary_of_several_tasks_reports_each() -> None:
    def record(iteration: int, reach: float, push: float) -> dict[str, float]:
        rates = {"eval/greedy_success_rate/reach": reach, "eval/greedy_success_rate/push": push}
        return {"iteration": iteration, "eval/num_goals": 4, **rates}

    records = [record(0, 0.5, 0.25), {"iteration": 1}, record(1, 0.75, 0.25), record(2, 1.0, 0.5)]
    assert task_summary(records, 2, ("reach", "push")) == {
        "success_rates_before": {"reach": 0.5, "push": 0.25},
        "success_rates_after": {"reach": 1.0, "push": 0.5},
    }
    assert task_summary(records, 2, ("reach",)) == {}
