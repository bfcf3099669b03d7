"""Costs from a run's metrics, scaled to other numbers of ranks and rows, and by formulas to devices."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodyflow.config.composition.compose import compose_config
from embodyflow.errors import ConfigError
from embodyflow.forecast.machine import Machine
from embodyflow.forecast.record import Cost, RunRecord, read_run, read_runs
from embodyflow.forecast.roofline import Assumptions, Target, assumed, cache_bytes, on_devices
from embodyflow.forecast.scaling import (
    COMMIT_PARTS,
    Line,
    Point,
    changed,
    fitted,
    pooled,
    rows_per_rank,
    scaled,
    shape_of,
)
from embodyflow.forecast.schedule import Shape
from embodyflow.graph.planning.memory_estimate import ModelSize
from embodyflow.record.run_folder import RunFolder

SMALL = ("env.max_steps=20", "evaluation.num_goals=4", "rollout.num_workers=2", "rollout.num_groups=4")
LANGUAGE = ("experiment=math", "rollout.num_groups=64", "rollout.num_workers=2")


def record_of(
    root: Path, *words: str, name: str = "mine", scale: float = 1.0, cores: float = math.inf, **more: float
) -> RunRecord:
    """Return the record of a run with three iterations, of which the first is slow."""
    folder = RunFolder.create(compose_config((f"run_root={root}", f"run_id={name}", *words)))
    for iteration, factor in ((1, 9.0), (2, 1.0), (3, 1.0)):
        folder.metrics.append(line(iteration, factor * scale) | more)
    return read_run(folder, alone(cores))


def alone(cores: float) -> Machine:
    """Return a machine whose caches are as good for many processes as for one."""
    return Machine(cores, sharing=0.0)


def line(iteration: int, scale: float = 1.0) -> dict[str, Any]:
    """Return metrics: 5 s of rollouts, of which 1 s without a core, 2 s of training, 1 s between nodes."""
    seconds = {
        **{"wait_for_rollout": 6.0, "iteration": 9.0, "commit": 1.0, "rollout": 5.0, "sampling": 0.5, "reward": 0.1},
        **{"advantage": 0.1, "old_log_prob": 0.3, "train_actor": 2.0, "flow_queued": 0.2},
        **{"rollout_queued": 1.0, "rollout_cpu": 8.0, "train_actor_queued": 0.5, "train_actor_cpu": 1.5},
    }
    metrics = {f"perf/{name}_seconds": scale * value for name, value in seconds.items()}
    return {"iteration": iteration, **metrics, "rollout/episode_steps": 100.0}


def test_time_without_a_core_does_not_count(tmp_path: Path) -> None:
    record = record_of(tmp_path, *SMALL)
    assert record.measured == [10.0, 10.0], "the first iteration is left out"
    assert record.queued == [pytest.approx(1.0 + 0.5 + 0.2)] * 2
    sample = record.samples[0]
    assert sample.nodes["rollout"] == Cost(4.0, 4.0), "1 s without a core; 8 s of CPU time of two ranks"
    assert sample.nodes["train_actor"] == Cost(1.5, 1.5)
    assert sample.nodes["old_log_prob"] == Cost(0.3, 0.3), "without CPU times a node computes all the time"
    path = ["rollout", "sampling", "reward", "advantage", "old_log_prob", "ref_log_prob", "train_actor"]
    assert sample.between.seconds == pytest.approx((9.0 - 8.0) / len(path))
    assert (sample.checkpoint, record.machine.services) == (Cost(), 0.0), "nothing is known about what they took"


def test_ranks_on_too_few_cores_wait_for_each_other(tmp_path: Path) -> None:
    """Two ranks of 0.75 CPU seconds on one core: each waits 0.75 s for the other, more than the 0.5 s in the queue."""
    record = record_of(tmp_path, *SMALL, "trainer.num_ranks=2", cores=1)
    assert record.samples[0].nodes["train_actor"] == Cost(2.0 - 0.75, 0.75)
    assert record.machine.services == 0.0, "the ranks took the core from each other"


@pytest.mark.parametrize(
    ("cores", "train_waits", "rollout_waits", "services", "checkpoint"),
    [(2, 0.5, 4.0, 0.8, 1.6), (2, 0.1875, 1.5, 0.4, 0.8), (4, 0.5, 4.0, 0.0, 0.0), (1, 0.5, 4.0, 0.0, 0.0)],
    ids=["full cores", "full cores, less lost", "ranks leave cores to others", "ranks wait for each other"],
)
def test_what_full_cores_lose_is_the_work_beside(
    tmp_path: Path, cores: float, train_waits: float, rollout_waits: float, services: float, checkpoint: float
) -> None:
    """Two ranks compute for 1.5 s and wait 0.5 s each: they have 1.5 / 1.25 of two cores, and the services have 0.8.

    Two workers compute for 8 s and wait 4 s each. So in 8 s they had 8 of 1.2 · 8 CPU seconds, and the checkpoint 1.6.
    """
    more = {"perf/train_actor_queued_seconds": train_waits, "perf/rollout_queued_seconds": rollout_waits}
    record = record_of(tmp_path, *SMALL, "trainer.num_ranks=2", cores=cores, **more)
    assert record.machine.services == pytest.approx(services) and record.machine.left == cores - record.machine.services
    each = record.samples[0].checkpoint
    assert (each.seconds, each.computing) == (pytest.approx(checkpoint / 2), pytest.approx(checkpoint / 2))


def test_what_one_run_tells_about_services_counts_for_all(tmp_path: Path) -> None:
    """Of two cores the services have 0.8, so one rank for each is left 1.2, and 4 ranks wait for 4 / 1.2 − 1 turns."""
    record_of(tmp_path, *SMALL, "trainer.num_ranks=2", name="two")
    record_of(tmp_path, *SMALL, "trainer.num_ranks=4", name="four", **{"perf/train_actor_cpu_seconds": 1.2})
    two, four = read_runs([RunFolder(tmp_path / name) for name in ("two", "four")], alone(2))
    assert two.machine == four.machine and two.machine.services == pytest.approx(0.8)
    assert four.samples[0].nodes["train_actor"].seconds == pytest.approx(2.0 - 0.3 * (4 / 1.2 - 1))


def test_a_cost_is_that_with_caches_of_its_own(tmp_path: Path) -> None:
    """Four ranks on two cores leave 1 - 2 / 4 of what they want, so their work took 1.1 times the CPU seconds."""
    full = {"perf/train_actor_cpu_seconds": 1.1, "perf/train_actor_queued_seconds": 0.275}
    record_of(tmp_path, *SMALL, "trainer.num_ranks=4", **full)
    record_of(tmp_path, *SMALL, "rollout.max_staleness=1", "algorithm.old_log_probs=proximal", name="ahead")
    crowded, ahead = (
        read_run(RunFolder(tmp_path / name), Machine(2.0, sharing=0.2)).samples[0].nodes["train_actor"]
        for name in ("mine", "ahead")
    )
    assert crowded.computing == pytest.approx(0.275 / 1.1)
    assert crowded.seconds == pytest.approx(2.0 - 0.275 - 0.275 * (1 - 1 / 1.1))
    assert ahead.computing == pytest.approx(1.5 / (1 + 0.2 / 3)), "two workers compute beside the rank"


def test_repeats_of_a_run_count_as_one_with_the_iterations_of_all(tmp_path: Path) -> None:
    repeats = [record_of(tmp_path, *SMALL, name=f"repeat{scale:g}", scale=scale) for scale in (1.0, 4.0, 2.0)]
    other = record_of(tmp_path, *SMALL, "rollout.num_workers=4", name="other")
    record, rest = pooled([repeats[0], other, *repeats[1:]])
    assert rest == other
    assert record.measured == [10.0, 10.0, 40.0, 40.0, 20.0, 20.0]
    config = changed(record.config, {"trainer.num_ranks": "2"})
    seconds = [each.nodes["train_actor"].seconds for each in scaled(record, config)]
    assert seconds == pytest.approx([0.75, 0.75, 3.0, 3.0, 1.5, 1.5]), "half of the rows take half of the time"


def test_a_second_run_tells_what_each_rank_adds_to_a_checkpoint(tmp_path: Path) -> None:
    """One rank takes 2 CPU seconds and two take 3, so 1 s is fixed and four take 5."""
    record = record_of(tmp_path, *SMALL, cores=2)
    more = {"perf/rollout_queued_seconds": 1.5, "perf/train_actor_queued_seconds": 0.0}
    other = record_of(tmp_path, *SMALL, "trainer.num_ranks=2", name="other", cores=2, **more)
    config = changed(record.config, {"trainer.num_ranks": "4"})
    assert scaled(record, config, [other])[0].checkpoint.seconds == pytest.approx(5 / 4)
    assert scaled(record, config)[0].checkpoint.seconds == pytest.approx(2.0), "one run: each rank takes as long"


def test_a_second_run_tells_what_each_process_adds_between_nodes(tmp_path: Path) -> None:
    """Three processes take 1/7 s and five take 1.4/7 s, so six take 1.6/7 s."""
    record = record_of(tmp_path, *SMALL)
    other = record_of(tmp_path, *SMALL, "rollout.num_workers=4", name="other", **{"perf/iteration_seconds": 9.4})
    config = changed(record.config, {"rollout.num_workers": "4", "trainer.num_ranks": "2"})
    assert scaled(record, config, [other])[0].between.seconds == pytest.approx(1.6 / 7)
    assert scaled(record, config)[0].between == record.samples[0].between


def test_one_run_scales_with_the_rows_of_the_busiest_rank(tmp_path: Path) -> None:
    record = record_of(tmp_path, *SMALL)
    config = changed(record.config, {"rollout.num_workers": "3", "trainer.num_ranks": "2"})
    assert rows_per_rank(record.config)["rollout"] == 2 * record.config.rollout.group_size  # type: ignore[attr-defined]
    [sample, _] = scaled(record, config)
    assert sample.nodes["rollout"].seconds == pytest.approx(4.0), "three workers for four groups: one plays two"
    assert sample.nodes["train_actor"].seconds == pytest.approx(0.75)
    assert sample.between == record.samples[0].between
    assert shape_of(config) == Shape(workers=3, ranks=2)


def test_a_second_run_tells_what_does_not_scale(tmp_path: Path) -> None:
    """At half of the rows a worker takes 2.4 s in place of 4 s. So 0.8 s are fixed."""
    record = record_of(tmp_path, *SMALL)
    more = {"perf/rollout_cpu_seconds": 4 * 2.4, "perf/rollout_seconds": 2.4, "perf/rollout_queued_seconds": 0.0}
    other = record_of(tmp_path, *SMALL, "rollout.num_workers=4", name="other", **more)
    config = changed(record.config, {"rollout.num_groups": "8", "rollout.num_workers": "2"})
    [sample, _] = scaled(record, config, [other])
    assert sample.nodes["rollout"].seconds == pytest.approx(0.8 + 2 * 3.2)


def test_a_second_run_tells_what_ranks_exchange(tmp_path: Path) -> None:
    """Half of the rows would take 0.75 s. Two ranks take 1.25 s: they compute for 0.25 s more, and wait for 0.25 s.

    With four ranks each moves 3/4 of the weights in place of 1/2, so 1.5 times as much.
    """
    record = record_of(tmp_path, *SMALL)
    seconds = {"perf/train_actor_seconds": 1.25, "perf/train_actor_queued_seconds": 0.0}
    more = seconds | {"perf/train_actor_cpu_seconds": 2 * 1.0, "perf/commit_seconds": 1.5}
    other = record_of(tmp_path, *SMALL, "trainer.num_ranks=2", name="other", **more)
    [sample, _] = scaled(record, changed(record.config, {"trainer.num_ranks": "4"}), [other])
    assert sample.nodes["train_actor"].seconds == pytest.approx(1.5 / 4 + 0.375 + 0.375)
    assert sample.nodes["train_actor"].computing == pytest.approx(1.5 / 4 + 0.375)
    assert sample.commit.seconds == pytest.approx(1.0 + 0.75), "the commit exchanges weights, whatever the rows are"
    assert sample.commit.computing == pytest.approx(0.75), "ranks share the cores while they exchange"
    assert sample.nodes["rollout"].seconds == pytest.approx(4.0)


def test_runs_of_one_shape_count_alike(tmp_path: Path) -> None:
    """Rollouts take 4 s in one run and 1.2 times as long in another, so the forecast has the mean."""
    record = record_of(tmp_path, *SMALL)
    other = record_of(tmp_path, *SMALL, name="other", scale=1.2)
    assert scaled(record, record.config, [other])[0].nodes["rollout"].seconds == pytest.approx(4.4)


def test_a_third_number_of_ranks_tells_what_a_message_takes() -> None:
    """Rows take 1 s of one rank, bytes 0.4 (n − 1) / n and messages 0.1 (n − 1). Two numbers tell no messages."""
    points = [Point(8.0, 1, 1.0), Point(4.0, 2, 0.5 + 0.2 + 0.1), Point(2.0, 4, 0.25 + 0.3 + 0.3)]
    found = fitted(points)
    assert (found.per_row, found.exchange, found.steps) == pytest.approx((0.125, 0.4, 0.1))
    assert found.at(1.0, 8) == pytest.approx(0.125 + 0.35 + 0.7)
    assert fitted(points[:2]) == Line(per_row=pytest.approx(0.125), exchange=pytest.approx(0.6))


PARTS = st.floats(0, 5)


@given(PARTS, st.floats(0.01, 5), PARTS, st.lists(st.floats(1, 100), min_size=2, max_size=4, unique=True))
def test_points_on_a_line_give_the_line(fixed: float, per_row: float, exchange: float, rows: list[float]) -> None:
    of_equal_ranks = fitted([Point(each, 1, fixed + per_row * each) for each in rows])
    for each in (*rows, 50.0):
        assert of_equal_ranks.at(each) == pytest.approx(fixed + per_row * each, rel=1e-3, abs=1e-3)
    line = Line(fixed, per_row, exchange)
    places = [(rows[0], 1), (rows[0], 2), (rows[0], 4), *((each, 2) for each in rows[1:])]
    found = fitted([Point(each, ranks, line.at(each, ranks)) for each, ranks in places])
    for each, ranks in (*places, (50.0, 8)):
        assert found.at(each, ranks) == pytest.approx(line.at(each, ranks), rel=1e-3, abs=1e-3)


def test_a_line_has_no_negative_part() -> None:
    assert fitted([Point(2.0, 1, 3.0)]) == Line(per_row=pytest.approx(1.5))
    assert fitted([Point(1.0, 1, 2.0), Point(2.0, 1, 1.0)]) == Line(fixed=pytest.approx(1.5))
    assert fitted([Point(1.0, 1, 1.0), Point(2.0, 1, 3.0)]) == Line(per_row=pytest.approx(1.4))
    assert fitted([Point(1.0, 2, 1.0), Point(2.0, 1, 3.0)]) == Line(per_row=pytest.approx(1.4))
    assert fitted([Point(8.0, 1, 1.0), Point(4.0, 2, 0.5)], COMMIT_PARTS) == Line(fixed=pytest.approx(0.75))


def test_an_exchange_takes_longer_where_ranks_share_cores() -> None:
    """1 s is fixed. Two ranks exchange 1/2 for 0.5 s; four on two cores 3/4, twice as long, so for 1.5 s."""
    points = [Point(0.0, 1, 1.0), Point(0.0, 2, 1.5), Point(0.0, 4, 2.5, crowding=2.0)]
    assert fitted(points, COMMIT_PARTS) == Line(fixed=pytest.approx(1.0), exchange=pytest.approx(1.0))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"env.max_steps": "40"}, "env.max_steps=40: a forecast does not know what it costs; allowed are rollout.num_"),
        ({"rollout.num_workers": "9"}, "num_workers=9: must be at most num_groups=4"),
        ({"algorithm.old_log_probs": "recorded"}, "old_log_probs=recorded: the run has recomputed, so its record"),
        ({"rollout.max_staleness": "1"}, "old_log_probs=recomputed: needs rollout.max_staleness=0"),
    ],
)
def test_changes_without_a_known_cost_are_refused(tmp_path: Path, values: dict[str, str], message: str) -> None:
    record = record_of(tmp_path, *SMALL)
    with pytest.raises(ConfigError) as refusal:
        changed(record.config, values)
    [line] = str(refusal.value).splitlines()
    assert message in line


# ---- devices

ROUND = Assumptions(
    tflops=1e-3, memory_gb=1.0, link_gb=1.0, flops_share=1, memory_share=1, link_share=1, prompt_tokens=100
)
"""1e9 FLOP/s, and 1e9 bytes/s of memory and link."""


def on_round_devices(record: RunRecord, shape: Shape, **more: Any) -> dict[str, float]:
    model = ModelSize(1e6)
    target = Target(machines=1, cpus=4, model=model, critic=model, assumptions=ROUND, **more)
    sample = on_devices(record, record.config, target, shape)[0]
    return {node: cost.seconds for node, cost in sample.nodes.items()} | {"commit": sample.commit.seconds}


def test_the_formulas_of_a_language_model(tmp_path: Path) -> None:
    """512 rows of 100 + 100 tokens and 10⁶ parameters: 256 rows on each of two devices, one rank trains."""
    record = record_of(tmp_path, *LANGUAGE)
    found = on_round_devices(record, Shape(2, 1))
    rows, cache = 256, cache_bytes(1e6, 4.0)
    read = (2e6 * 400 + rows * cache * 100 * 150) / 1e9
    computed, prefill = 2e6 * rows * 100 / 1e9, 2e6 * rows * 100 / 1e9
    assert found["rollout"] == pytest.approx(max(read, computed) + prefill)
    assert found["old_log_prob"] == pytest.approx(2e6 * 512 * 200 / 1e9)
    trainer = record.config.trainer
    assert found["train_actor"] == pytest.approx(trainer.epochs * 6e6 * 512 * 200 / 1e9)
    assert found["commit"] == pytest.approx(1.0)
    assert found["reward"] == pytest.approx(0.1), "a node without a model keeps its time"


def test_ranks_that_train_exchange_their_weights_and_gradients(tmp_path: Path) -> None:
    record = record_of(tmp_path, *LANGUAGE)
    trainer = record.config.trainer
    found = on_round_devices(record, Shape(2, 4))
    moved = trainer.num_minibatches * 3 * 3 / 4 * 2e6 / 1e9
    assert found["train_actor"] == pytest.approx(trainer.epochs * (6e6 * 512 * 200 / 4e9 + moved))
    assert found["commit"] == pytest.approx(1.0 + 3 / 4 * 4e6 / 1e9)


def test_a_robot_policy_decides_and_its_environments_step_on_the_cores(tmp_path: Path) -> None:
    record = record_of(tmp_path, *SMALL)
    config: Any = record.config
    found = on_round_devices(record, Shape(2, 1))
    rows = 2 * config.rollout.group_size
    decisions = config.num_decisions * max(2e6 / 1e9, 2e6 * rows * 300 / 1e9)
    assert found["rollout"] == pytest.approx(decisions + 4.0 * 2 / 4)


def test_keys_and_values_of_a_7b_model_are_those_of_llama() -> None:
    """Llama 2 7B has 2 · 32 layers · 4096 numbers of 2 bytes for a token."""
    assert cache_bytes(6.74e9, 1.0) == pytest.approx(2 * 32 * 4096 * 2, rel=0.05)


def test_a_model_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    record, model = record_of(tmp_path, *LANGUAGE), ModelSize(70e9)
    target = Target(1, 4, model, model)
    with pytest.raises(ConfigError, match=r"--tensor-parallel=1: 7e\+10 parameters in 16 bits .* raise it"):
        on_devices(record, record.config, target, Shape(2, 1))


@pytest.mark.parametrize("words", [{"speed": "1"}, {"tflops": "fast"}, {"tflops": "0"}, {"link_gb": "inf"}])
def test_wrong_assumptions_are_refused(words: dict[str, str]) -> None:
    [(name, value)] = words.items()
    with pytest.raises(ConfigError, match=rf"--assume {name}={value}: (allowed are tflops,|must be a number above 0)"):
        assumed(words)
