from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from embodyflow.config.run import GroupShape
from embodyflow.workers.gpu_sharing import gpu_of_each


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
