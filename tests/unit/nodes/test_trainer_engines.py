"""What every trainer engine does: an engine in ``small_engines.JOBS`` must pass these tests as they are."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from conformance import differences
from small_engines import JOBS, build_rollout, connected_trainer, published, rows_to_train_on
from trainers import assert_same_in_parts

from embodyflow.data.metrics import as_metrics, to_floats
from embodyflow.nodes.engines import TrainerEngine
from embodyflow.types import Batch


class Built(NamedTuple):
    """A trainer alone in its group, and rows that a rollout engine gathered with its weights."""

    engine: Any
    rows: Batch

    def step(self, method: str = "step") -> dict[str, float]:
        positions = np.arange(len(self.rows))
        metrics = getattr(self.engine, method)(self.rows, positions=positions, total_rows=len(self.rows), seed=5)
        return to_floats(as_metrics(metrics))


@pytest.fixture(scope="module", params=JOBS)
def built(request: pytest.FixtureRequest) -> Iterator[Built]:
    job = JOBS[request.param]
    config = job.config("algorithm.advantage=gae")
    with connected_trainer(config) as engine:
        rollout = build_rollout(config)
        rollout.update_weights(published(engine), 0)
        rows = rows_to_train_on(job, job.gather(rollout, 1))
        rollout.close()
        yield Built(engine, rows)


def test_it_has_the_methods_of_its_protocol(built: Built) -> None:
    assert differences(TrainerEngine, built.engine) == []
    assert (built.engine.rank, built.engine.world_size) == (0, 1)


def test_weights_are_arrays_by_name_and_a_probe_has_names_of_its_own(built: Built) -> None:
    weights, probe = built.engine.weights(), built.engine.probe()
    assert weights and all(isinstance(each, np.ndarray) for each in (*weights.values(), *probe.values()))
    assert not weights.keys() & probe.keys()


def test_weights_in_parts_are_the_same(built: Built) -> None:
    assert_same_in_parts(built.engine)


def test_it_finds_the_log_probs_that_rows_were_sampled_with(built: Built) -> None:
    for reference in (False, True):  # nothing has been trained yet
        log_probs = built.engine.log_probs(built.rows, reference=reference)
        assert (log_probs.shape, log_probs.dtype) == (built.rows["log_probs"].shape, torch.float32)
        torch.testing.assert_close(log_probs, built.rows["log_probs"], atol=1e-4, rtol=0)


def test_entropies_come_with_the_same_log_probs(built: Built) -> None:
    log_probs, entropy = built.engine.log_probs_and_entropy(built.rows)
    assert torch.equal(log_probs, built.engine.log_probs(built.rows, reference=False))
    assert (entropy.shape, entropy.dtype) == (log_probs.shape, torch.float32)
    mask = built.rows["loss_mask"]
    assert (entropy[mask] != 0).all() and not entropy[~mask].any()


def test_there_is_a_value_for_each_decision(built: Built) -> None:
    values, decided = built.engine.values(built.rows), built.rows["loss_mask"].any(-1)
    assert (values.shape, values.dtype) == (decided.shape, torch.float32) and not values[~decided].any()


@pytest.mark.parametrize("method", ["step", "step_critic", "step_both"])
def test_a_step_changes_the_fingerprint_and_a_checkpoint_brings_it_back(
    built: Built, method: str, tmp_path: Path
) -> None:
    before = built.engine.fingerprint()
    assert before == built.engine.fingerprint()
    built.engine.save(str(tmp_path))
    first = built.step(method)
    changed = built.engine.fingerprint()
    assert changed != before
    built.engine.load(str(tmp_path))
    assert built.engine.fingerprint() == before
    assert built.step(method) == first and built.engine.fingerprint() == changed
    built.engine.load(str(tmp_path))


def test_weights_go_to_a_file_and_come_back(built: Built, tmp_path: Path) -> None:
    weights = built.engine.weights()
    built.engine.save_weights_file(str(tmp_path / "weights.safetensors"))
    built.step()
    built.engine.load_weights_file(str(tmp_path / "weights.safetensors"))
    after = built.engine.weights()
    assert all(np.array_equal(after[name], weights[name]) for name in weights)


def test_one_rank_adds_up_to_itself(built: Built) -> None:
    assert torch.equal(built.engine.all_reduce(torch.arange(3.0)), torch.arange(3.0))
    assert built.engine.kl_coef_in(1) == built.engine.config.algorithm.kl.coef
