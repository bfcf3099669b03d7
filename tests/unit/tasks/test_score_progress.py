"""The progress of failures is the same on any number of ranks."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import tasks
from embodyflow.data.metrics import as_metrics, to_floats
from embodyflow.errors import RewardError
from embodyflow.types import Batch, NodeOutput

ROWS = 12


@pytest.fixture
def batch() -> Batch:
    """Twelve episodes of two tasks; task 1 has no success."""
    random = np.random.default_rng(0)
    length = torch.from_numpy(random.integers(1, 5, ROWS))
    success = torch.arange(ROWS) % 4 == 0
    columns = {
        "uid": torch.arange(100, 100 + ROWS),
        "env_task_id": torch.arange(ROWS) % 2,
        "success": success,
        "loss_mask": (torch.arange(4) < length[:, None]).unsqueeze(-1).expand(-1, -1, 3).clone(),
        "state": torch.from_numpy(random.standard_normal((ROWS, 4, 5)).astype(np.float32)),
        "final_state": torch.from_numpy(random.standard_normal((ROWS, 5)).astype(np.float32)),
    }
    return Batch(columns, batch_size=[ROWS])


class Ranks:
    """Runs the node on several ranks, each a thread, with a real all-reduce."""

    def __init__(self, config, bounds: list[int]) -> None:
        self._config, self._bounds = config, bounds
        self._barrier = threading.Barrier(len(bounds) - 1)
        self._tables: list[torch.Tensor] = []

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        self._tables.append(tensor)
        self._barrier.wait(timeout=10)
        return torch.stack(self._tables).sum(0)

    def run(self, batch: Batch) -> list[NodeOutput]:
        outputs: dict[int, NodeOutput] = {}

        def rank(index: int, start: int, stop: int) -> None:
            worker = SimpleNamespace(config=self._config, all_reduce=self.all_reduce)
            call = SimpleNamespace(positions=np.arange(len(batch))[start:stop], total_rows=len(batch))
            outputs[index] = tasks.score_progress(batch[start:stop], worker=worker, call=call)

        spans = list(zip(self._bounds, self._bounds[1:], strict=False))
        threads = [threading.Thread(target=rank, args=(index, *span)) for index, span in enumerate(spans)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=10)
        return [outputs[index] for index in range(len(spans))]


@pytest.fixture
def config():
    from embodyflow.rewards.progress.progress_config import ProgressConfig

    return SimpleNamespace(progress=ProgressConfig(), cluster=SimpleNamespace(device="cpu"))


@pytest.mark.parametrize("bounds", [[0, 6, 12], [0, 5, 5, 12], [0, 1, 12]])
def test_rows_do_not_depend_on_the_number_of_ranks(batch: Batch, config, bounds: list[int]) -> None:
    [alone] = Ranks(config, [0, ROWS]).run(batch)
    shared = Ranks(config, bounds).run(batch)
    for name in ("uid", "scores", "progress_distance"):
        assert torch.equal(torch.cat([output.batch[name] for output in shared]), alone.batch[name]), name


def test_it_passes_on_scores_only_and_reports_unreached_tasks(batch: Batch, config) -> None:
    [output] = Ranks(config, [0, ROWS]).run(batch)
    assert sorted(output.batch.keys()) == ["progress_distance", "scores", "uid"]
    scores = output.batch["scores"]
    assert (scores[batch["success"]] == 1).all()
    assert (scores[batch["env_task_id"] == 1] == 0).all()
    between = scores[(batch["env_task_id"] == 0) & ~batch["success"]]
    assert ((between > 0) & (between < 0.8)).all()
    metrics = to_floats(as_metrics(output.metrics))
    assert metrics["progress/num_unreached_tasks"] == 1
    assert metrics["progress/failure_score"] == pytest.approx(scores[~batch["success"]].mean().item())


def test_a_state_of_nan_names_its_episode(batch: Batch, config) -> None:
    batch["state"][7, 0, 0] = float("nan")
    worker = SimpleNamespace(config=config, all_reduce=lambda table: table)
    with pytest.raises(RewardError, match="row 107: its embedding is not finite"):
        tasks.score_progress(batch, worker=worker, call=SimpleNamespace(positions=np.arange(ROWS), total_rows=ROWS))


def test_groups_that_failed_as_a_whole_are_kept_where_their_scores_differ(tiny_config) -> None:
    columns = {
        "uid": torch.arange(6),
        "group_id": torch.tensor([0, 0, 1, 1, 2, 2]),
        "success": torch.tensor([True, True, False, False, False, False]),
        "truncated": torch.zeros(6, dtype=torch.bool),
        "scores": torch.tensor([1.0, 1.0, 0.3, 0.4, 0.0, 0.0]),
    }
    batch, worker = Batch(columns, batch_size=[6]), SimpleNamespace(config=tiny_config())
    assert tasks.filter_groups(batch, {"uniform": "scores"}, worker=worker).batch["uid"].tolist() == [2, 3]
    assert tasks.filter_groups(batch, {}, worker=worker).batch["uid"].tolist() == []
