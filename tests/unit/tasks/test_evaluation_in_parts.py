"""An evaluation in parts, or of all shares by one rank, has the metrics of one that each rank plays at once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from node_calls import call_of
from small_engines import JOBS, build_rollout, connected_trainer, published

import tasks
from embodyflow.data.metrics import as_metrics, merge_metrics, to_floats
from embodyflow.types import NodeOutput

NUM_SHARES = 2
WORDS = {
    "control": ("evaluation={num_episodes: 7}",),
    "embodied": ("evaluation.num_goals=7", "evaluation.video=false"),
    "language": ("evaluation.num_prompts=7", "evaluation.num_samples=2"),
}
NODES = {
    "control": [("evaluate_returns", tasks.evaluate_returns, {})],
    "embodied": [("evaluate_sampled", tasks.evaluate_policy, {"mode": "sampled"})],
    "language": [("evaluate_sampled", tasks.evaluate_policy, {"mode": "sampled"})],
}


class Rank:
    """A rank that evaluates, and keeps the rows of parts in a folder.

    Args:
        job: Name of the job.
        rank: Index of the rank.
        world_size: Number of ranks.
        weights: Weights that it acts with.
        folder: Folder of the rows.
    """

    def __init__(self, job: str, rank: int, world_size: int, weights: Any, folder: Path) -> None:
        [(self._node_id, self._function, self._config)] = NODES[job]
        workers = f"rollout.num_workers={world_size}"
        self._weights, self._folder = weights, folder
        self.engine = build_rollout(JOBS[job].config(*WORDS[job], workers), rank, world_size)
        self.engine.update_weights(weights, 3)

    def evaluate(self, **config: int) -> NodeOutput:
        call = call_of(self._node_id, stage=str(self._folder / "iteration-000004" / self._node_id))
        output: NodeOutput = self._function(None, {**self._config, **config}, worker=self.engine, call=call)
        return output

    def evaluate_in_parts(self, size: int) -> NodeOutput:
        """Play the parts, other weights between them as a rollout would load, and then ask for the result."""
        part = 0
        while self.evaluate(rows_per_part=size, part=part).info["unplayed"]:
            self.engine.update_weights(self._weights, 4)
            self.engine.update_weights(self._weights, 3)
            part += 1
        assert part > 0, "the share has several parts"
        return self.evaluate(rows_per_part=size)


@pytest.fixture(scope="module", params=JOBS)
def job(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def weights(job: str) -> Any:
    with connected_trainer(JOBS[job].config()) as trainer:
        return published(trainer)


@pytest.fixture
def ranks(job: str, weights: Any, tmp_path: Path) -> Iterator[list[Rank]]:
    built = [Rank(job, rank, NUM_SHARES, weights, tmp_path) for rank in range(NUM_SHARES)]
    yield built
    for rank in built:
        rank.engine.close()


def numbers(outputs: list[NodeOutput]) -> dict[str, float]:
    """Return the merged metrics of ranks without timings."""
    merged = to_floats(merge_metrics(as_metrics(output.metrics) for output in outputs))
    return {name: value for name, value in merged.items() if not name.startswith("perf/")}


def test_parts_and_shares_give_the_same_numbers(job: str, weights: Any, ranks: list[Rank], tmp_path: Path) -> None:
    whole = [rank.evaluate() for rank in ranks]
    expected = numbers(whole)
    assert any(name.startswith("eval/") for name in expected)
    in_parts = [rank.evaluate_in_parts(2) for rank in ranks]
    assert numbers(in_parts) == expected
    assert [output.info for output in in_parts] == [output.info for output in whole]

    alone = Rank(job, 0, 1, weights, tmp_path / "alone")
    everything = alone.evaluate(shares=NUM_SHARES)
    assert numbers([everything]) == expected
    assert everything.info.get("examples") == whole[0].info.get("examples")
    alone.engine.update_weights({name: values * 0 for name, values in weights.items()}, 3) if job == "control" else None
    assert numbers([alone.evaluate(shares=NUM_SHARES)]) == expected, "its rows are kept, and not played again"
    alone.engine.close()
