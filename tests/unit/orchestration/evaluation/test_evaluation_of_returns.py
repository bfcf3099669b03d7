"""The part of ``flows.evaluate`` that plays a control job's episodes, by its real engine and without Ray."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tasks
from embodyflow.config.composition.compose import compose_config
from embodyflow.data.confidence_intervals import mean_interval
from embodyflow.orchestration.evaluation import lanes, returns
from embodyflow.orchestration.evaluation.evaluation_request import EvaluatedPolicy
from embodyflow.orchestration.evaluation.evaluation_run import evaluation_lines
from embodyflow.rollouts.control_rollout import ControlRollout


def test_returns_have_their_interval_in_the_result_and_in_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("experiment=reacher", "evaluation.num_episodes=6", "rollout.envs_per_worker=1", "env.max_steps=8")
    config: Any = compose_config(words)
    engine = ControlRollout(config, 0, 1)

    async def play(work: Any) -> Any:
        return SimpleNamespace(metrics=tasks.evaluate_returns(None, worker=engine, call=None).metrics)

    monkeypatch.setattr(lanes, "submit_node", play)
    run: Any = SimpleNamespace(config=config)
    result = asyncio.run(returns.evaluate_policy(run, EvaluatedPolicy(Path("arm"), 3)))
    played = engine.evaluate(range(6))
    engine.close()
    mean, deviation = float(np.mean(played.returns)), float(np.std(played.returns, ddof=1))
    low, high = mean_interval(mean, deviation, 6)
    expected = {"mean": mean, "low": low, "high": high, "std": deviation, "episodes": 6, "mean_steps": 8}
    assert result == {"return": pytest.approx(expected)}
    assert evaluation_lines({**result, "unrestorable": ["arm: not restored"]}) == (
        f"return {mean:.4g} [{low:.4g}, {high:.4g}] over 6 episodes of 8 steps\narm: not restored"
    )
