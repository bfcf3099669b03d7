from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st

from embodyflow.config import RunConfig
from embodyflow.config.run import GroupShape
from embodyflow.errors import ConfigError
from embodyflow.orchestration.request.request import RunRequest, check
from embodyflow.workers.gpu_sharing import check_resources, gpu_of_each, has_room_without


def shapes(rollouts: int, trainers: int) -> dict[str, GroupShape]:
    return {"rollout": GroupShape("m:R", rollouts), "trainer": GroupShape("m:T", trainers)}


def test_a_small_run_has_one_gpu_and_a_large_one_has_trainer_and_rollout_side_by_side() -> None:
    assert gpu_of_each(shapes(2, 1), 0.25) == {"trainer": [0], "rollout": [0, 0]}
    assert gpu_of_each(shapes(2, 2), 0.25) == {"trainer": [0, 1], "rollout": [0, 1]}
    assert gpu_of_each(shapes(4, 4), 0.5) == {"trainer": [0, 1, 2, 3], "rollout": [0, 1, 2, 3]}
    assert gpu_of_each(shapes(6, 2), 0.4) == {"trainer": [0, 1], "rollout": [2, 3, 0, 1, 2, 3]}


@given(st.integers(1, 20), st.integers(1, 20), st.floats(0.01, 0.99))
def test_trainer_ranks_have_a_gpu_each_and_no_gpu_is_oversubscribed(rollouts: int, trainers: int, each: float) -> None:
    places = gpu_of_each(shapes(rollouts, trainers), each)
    assert len(set(places["trainer"])) == trainers
    loads = Counter(places["rollout"] + places["trainer"])
    assert sorted(loads) == list(range(len(loads)))
    assert max(loads.values()) * each <= 1
    assert max(loads.values()) - min(loads.values()) <= 1


GPU_RUN = ("cluster=gpu", "env.max_steps=20", "evaluation.num_goals=2")


@pytest.mark.parametrize(
    ("words", "need"), [((), "3 workers need 1 GPUs"), (("trainer.num_ranks=2",), "4 workers need 2")]
)
def test_a_gpu_that_is_not_here_is_said_before_the_other_checks(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], need: str
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("embodyflow.workers.gpu_sharing._num_own_gpus", lambda: 0)
    unfit = RunRequest(overrides=(*GPU_RUN, *words, "evaluation.num_goals=100000"))
    with pytest.raises(ConfigError) as refusal:
        check(unfit, starts=True)
    (line,) = str(refusal.value).splitlines()
    assert line.startswith(f"cluster.gpus_per_worker=0.25: with cluster.device=cuda {need}")
    assert "this machine has 0; allowed are cluster=local" in line
    with pytest.raises(ConfigError, match=r"^evaluation\.num_goals"):  # as `embodyflow config` does
        check(unfit)


def test_gpus_are_looked_for_where_the_workers_start(monkeypatch: pytest.MonkeyPatch) -> None:
    fit = RunRequest(overrides=GPU_RUN)
    monkeypatch.setattr("embodyflow.workers.gpu_sharing._num_own_gpus", lambda: 1)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert check(fit, starts=True).cluster.device == "cuda"
    monkeypatch.setattr("embodyflow.workers.gpu_sharing._num_own_gpus", lambda: 0)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert check(fit, starts=True).cluster.device == "cuda"


def test_a_cluster_without_gpus_is_refused_for_them_and_not_for_its_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    config: Any = check(RunRequest(overrides=(*GPU_RUN, "rollout.num_workers=4", "evaluation.num_goals=4")))
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 2.0})
    with pytest.raises(
        ConfigError, match=r"^cluster.gpus_per_worker=0.25: 5 workers need 2 GPUs, the Ray cluster has 0$"
    ):
        check_resources(config)
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 2.0, "GPU": 2.0})
    with pytest.raises(ConfigError) as refusal:
        check_resources(config)
    assert str(refusal.value) == "cluster.cpus_per_worker=1: 5 workers need 5 CPUs, the Ray cluster has 2"


@pytest.mark.parametrize(
    ("leaving", "words", "has_room"),
    [
        (set(), (), True),
        ({"small"}, (), True),
        ({"large"}, (), False),
        ({"small"}, ("cluster.device=cuda", "cluster.gpus_per_worker=1"), False),
        (set(), ("cluster.device=cuda", "cluster.gpus_per_worker=0.25"), False),  # reserved GPUs do not move
    ],
)
def test_room_is_that_of_the_nodes_that_stay(
    tiny_config: Callable[..., RunConfig],
    monkeypatch: pytest.MonkeyPatch,
    leaving: set[str],
    words: tuple[str, ...],
    has_room: bool,
) -> None:
    nodes = [
        {"NodeID": "small", "Alive": True, "Resources": {"CPU": 1.0, "GPU": 4.0}},
        {"NodeID": "large", "Alive": True, "Resources": {"CPU": 2.0}},
        {"NodeID": "dead", "Alive": False, "Resources": {"CPU": 9.0}},
    ]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    config = tiny_config("cluster.cpus_per_worker=1", *words)  # a rollout worker and a trainer
    assert has_room_without(leaving, config) is has_room
