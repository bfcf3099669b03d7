"""Profiles of a trainer rank, on a model of one matrix."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
import torch

from embodyflow.workers.rank.profiles import Profiles


def profiles_of(folder: Path) -> Profiles:
    return Profiles(folder, (2, 3), rank=1, device="cpu")


def compute(profiles: Profiles, iteration: int, node_id: str) -> None:
    with profiles.node(iteration, node_id):
        torch.ones(3, 3).mm(torch.ones(3, 3))


def names_in(path: Path) -> Counter[str]:
    with gzip.open(path) as file:
        return Counter(event["name"] for event in json.load(file)["traceEvents"] if event["ph"] == "X")


def test_a_profile_has_the_nodes_of_its_iteration_and_their_operations(tmp_path: Path) -> None:
    profiles = profiles_of(tmp_path / "profiles")
    for iteration in (1, 2, 3):
        for node_id in ("old_log_prob", "train_actor"):
            compute(profiles, iteration, f"{node_id} {iteration}")
        profiles.end(iteration - 1)  # the weights of an earlier version are published again
        profiles.end(iteration)
    files = [tmp_path / "profiles" / f"iteration-{iteration:06d}-rank-1.json.gz" for iteration in (2, 3)]
    assert sorted((tmp_path / "profiles").iterdir()) == files
    for iteration, path in zip((2, 3), files, strict=True):
        names = names_in(path)
        nodes = {name: number for name, number in names.items() if name[-1] in "123"}
        assert nodes == {f"old_log_prob {iteration}": 1, f"train_actor {iteration}": 1}
        assert names["aten::mm"] == 2


def test_an_iteration_that_begins_again_writes_a_whole_file_again(tmp_path: Path) -> None:
    profiles = profiles_of(tmp_path)
    compute(profiles, 2, "first try")
    profiles.end(2)
    compute(profiles, 2, "second try")
    profiles.drop()
    assert set(names_in(profiles.path(2))) >= {"first try"}
    compute(profiles, 2, "third try")
    profiles.end(2)
    assert set(names_in(profiles.path(2))) & {"first try", "second try", "third try"} == {"third try"}
    assert list(tmp_path.iterdir()) == [profiles.path(2)]


def test_a_node_that_fails_is_in_the_profile(tmp_path: Path) -> None:
    profiles = profiles_of(tmp_path)
    with pytest.raises(ZeroDivisionError), profiles.node(3, "fails"):
        raise ZeroDivisionError
    compute(profiles, 3, "again")
    profiles.end(3)
    assert set(names_in(profiles.path(3))) >= {"fails", "again"}


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_nodes_are_ranges_of_nvtx_on_a_gpu_while_they_are_profiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", lambda name: calls.append(f"push {name}"))
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: calls.append("pop"))
    profiles = Profiles(tmp_path, (2,), rank=0, device="cuda")
    compute(profiles, 1, "not profiled")
    with pytest.raises(ZeroDivisionError), profiles.node(2, "fails"):
        raise ZeroDivisionError
    compute(profiles, 2, "train")
    profiles.drop()
    assert calls == ["push fails", "pop", "push train", "pop"]
