"""Detectors find planted collapses in hand-made histories, and nothing in healthy ones."""

import math
import random
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodyflow.health.examination import Alarm, examine, reads_history, strongest, watches
from embodyflow.health.history import Finding, History
from embodyflow.health.roll_back_plan import Done
from embodyflow.health.settings import HealthConfig

HEALTHY = {
    "policy/entropy": 1.2,
    "policy/old_kl": 0.01,
    "policy/kl_to_reference": 0.05,
    "train/grad_norm": 0.4,
    "critic/grad_norm": 0.3,
    "critic/loss": 0.2,
    "policy/pg_loss": -0.001,
    "groups/mixed_fraction": 0.6,
    "groups/all_success_fraction": 0.2,
    "rollout/episode_steps": 80.0,
    "rollout/success_rate": 0.5,
    "rollout/num_episodes": 64.0,
    "perf/iteration_seconds": 2.0,
    "stream/staleness": 1.0,
}
TIMED = ("env_faults", "throughput_drop")
UNTIMED = tuple(
    name for name in HealthConfig.model_fields if name not in (*TIMED, "nan", "own", "roll_back", "pause_timeout")
)
ALL_ON = HealthConfig.model_validate({name: {"action": "notify"} for name in (*UNTIMED, *TIMED)})


def lines(count: int, *changes: tuple[range, Mapping[str, float]], first: int = 1) -> list[dict[str, Any]]:
    """Return healthy lines of iterations, with other values in some ranges of them."""
    found = []
    for iteration in range(first, first + count):
        line: dict[str, Any] = {"iteration": iteration, "weights_digest": "0", **HEALTHY}
        for span, values in changes:
            line |= values if iteration in span else {}
        found.append(line)
    return found


def evaluation(iteration: int, rate: float, low: float, high: float) -> dict[str, Any]:
    names = ("rate", "low", "high")
    return {"iteration": iteration} | {
        f"eval/greedy_success_{n}": v for n, v in zip(names, (rate, low, high), strict=True)
    }


def first_alarms(records: list[dict[str, Any]], config: HealthConfig = ALL_ON) -> dict[str, list[int]]:
    """Return the iterations in which each detector raises an alarm."""
    found: dict[str, list[int]] = {}
    for iteration in [line["iteration"] for line in records if "weights_digest" in line]:
        for alarm in examine(config, records, iteration):
            found.setdefault(alarm.detector, []).append(iteration)
    return found


FROM_20 = range(20, 100)


@pytest.mark.parametrize(
    ("change", "detector", "at"),
    [
        ({"policy/entropy": 0.1}, "entropy_collapse", 22),  # below a tenth of 1.2 in three iterations
        ({"policy/old_kl": -0.11}, "kl_runaway", 20),
        ({"policy/kl_to_reference": 2.1}, "kl_runaway", 20),
        ({"train/grad_norm": 2.1}, "spike", 20),
        ({"critic/loss": 1.1}, "spike", 20),
        ({"groups/mixed_fraction": 0.0}, "dead_groups", 24),
        ({"rollout/episode_steps": 241.0}, "length_drift", 22),
        ({"rollout/success_rate": 0.19}, "result_drop", 22),
        ({"perf/env_restarts": 39.0}, "env_faults", 20),  # 39 in 192 episodes of three iterations
        ({"perf/iteration_seconds": 6.1}, "throughput_drop", 21),
        ({"stream/staleness": 4.5}, "staleness", 21),
        ({"train/grad_norm": math.nan}, "nan", 20),
        ({"critic/loss": math.inf}, "nan", 20),
    ],
)
def test_a_planted_change_is_found_once_and_at_once(change: dict[str, float], detector: str, at: int) -> None:
    records = lines(30, (FROM_20, change))
    assert first_alarms(records)[detector] == [at]
    [alarm] = [each for each in examine(ALL_ON, records, at) if each.detector == detector]
    [(name, value)] = change.items()
    if detector == "env_faults":
        value /= 192
    assert alarm.finding.metric == name and alarm.finding.value == pytest.approx(value, nan_ok=True)
    assert str(alarm).startswith(f"health.{detector}: in iteration {at} ")
    assert alarm.of_facts(at, alarm.facts()) == alarm or math.isnan(value)
    assert alarm.metric == f"{'perf/' if detector in TIMED else ''}health/{detector}"


@pytest.mark.parametrize(
    "change",
    [
        {"policy/entropy": 0.13},
        {"policy/old_kl": 0.1},
        {"train/grad_norm": 2.0},
        {"groups/mixed_fraction": 0.05},
        {"groups/mixed_fraction": 0.0, "groups/all_success_fraction": 0.95},  # solved
        {"rollout/episode_steps": 239.0},
        {"rollout/success_rate": 0.2},
        {"rollout/episode_steps": 1.0},  # a robot that has learned to be quick
        {"perf/env_restarts": 12.0},
        {"perf/iteration_seconds": 5.9},
        {"stream/staleness": 4.0},
        {"policy/pg_loss": 5.0},
    ],
)
def test_a_change_within_the_thresholds_is_not_found(change: dict[str, float]) -> None:
    assert first_alarms(lines(30, (FROM_20, change))) == {}


def test_the_first_alarm_with_the_strongest_action_is_acted_on() -> None:
    def alarm(detector: str, action: str) -> Alarm:
        return Alarm(detector, action, 1, Finding("a", 1.0, 0.0, "it is wrong"))

    alarms = [alarm("a", "notify"), alarm("b", "roll_back"), alarm("c", "roll_back"), alarm("d", "notify")]
    assert strongest(alarms) is alarms[1] and strongest([]) is None
    assert strongest([alarm("e", "cancel"), *alarms]) == alarm("e", "cancel")


def test_an_alarm_comes_again_after_the_run_has_recovered() -> None:
    spikes = ((range(20, 22), {"train/grad_norm": 9.0}), (range(25, 26), {"train/grad_norm": 9.0}))
    assert first_alarms(lines(30, *spikes)) == {"spike": [20, 25]}


ON_HACKS = HealthConfig.model_validate({"reward_hacking": {"action": "notify"}})


def test_a_spike_is_found_from_the_fourth_iteration_on() -> None:
    for at, found in ((3, {}), (4, {"spike": [4]})):
        assert first_alarms(lines(at, (range(at, at + 1), {"train/grad_norm": 9.0}))) == found


def test_a_spike_is_known_again_without_the_iterations_that_were_discarded() -> None:
    records = lines(3, (range(2, 4), {"train/grad_norm": 2.5}))
    earlier = Done(8, 1, "spike", "train/grad_norm", 2.0)
    found = [[each.detector for each in examine(ALL_ON, records, index, [earlier])] for index in (1, 2, 3)]
    assert found == [[], ["spike"], []], "it is one spike"
    assert examine(ALL_ON, records, 2) == [], "an iteration is no baseline"


def test_a_hacked_reward_is_a_rising_reward_with_a_falling_evaluation() -> None:
    rising = [line | {"rollout/success_rate": 0.3 + 0.02 * line["iteration"]} for line in lines(20)]
    held_out = [evaluation(0, 0.3, 0.2, 0.4), evaluation(5, 0.6, 0.5, 0.7), evaluation(10, 0.55, 0.45, 0.65)]
    assert first_alarms([*rising, *held_out]) == {}, "the intervals overlap"
    fallen = [*held_out, evaluation(15, 0.3, 0.2, 0.4)]
    found = first_alarms([*rising, *fallen], ON_HACKS)
    assert found == {"reward_hacking": [16]}, "known once the evaluation is done"
    falling = [line | {"rollout/success_rate": 0.9 - 0.02 * line["iteration"]} for line in lines(20)]
    assert first_alarms([*falling, *fallen], ON_HACKS) == {}, "the run forgets, which is no hack"
    with_returns = [line | {"rollout/reward": 9.0 - 0.1 * line["iteration"]} for line in rising]
    found = first_alarms([*with_returns, *fallen], ON_HACKS)
    assert found == {"reward_hacking": [16]}, "the policy learns from success, and the environment's return falls"
    cautious = HealthConfig.model_validate({"reward_hacking": {"action": "notify", "margin": 0.6}})
    assert first_alarms([*rising, *fallen], cautious) == {}, "the gap of 0.1 is half a width of 0.2"


def test_an_evaluation_that_falls_is_found_whatever_training_shows() -> None:
    held_out = [evaluation(5, 0.8, 0.7, 0.9), evaluation(10, 0.55, 0.45, 0.66), evaluation(15, 0.45, 0.35, 0.55)]
    assert first_alarms([*lines(12), *held_out[:2]]) == {}, "the intervals are 0.04 apart, less than a quarter of 0.21"
    assert first_alarms([*lines(20), *held_out]) == {"result_drop": [16]}


def test_a_fall_knows_the_evaluation_before_it() -> None:
    records = [*lines(10), evaluation(5, 0.8, 0.7, 0.9), evaluation(8, 0.4, 0.3, 0.5)]
    [alarm] = [each for each in examine(ALL_ON, records, 9) if each.detector == "result_drop"]
    assert alarm.finding.healthy == 5


def test_a_runaway_step_asks_for_the_rate_of_a_usual_one() -> None:
    for entropy, factor in ((2.0, 0.1), (0.5, 0.05), (-3.0, 0.1 / math.sqrt(2))):  # a density has a negative one
        found = {"policy/old_kl": 0.4, "policy/entropy": entropy}
        [alarm] = examine(ALL_ON, lines(1, (range(1, 2), found)), 1)
        assert alarm.finding.rate_factor == pytest.approx(factor)
    [alarm] = examine(ALL_ON, lines(1, (range(1, 2), {"policy/kl_to_reference": 4.0})), 1)
    assert alarm.finding.rate_factor is None, "it is a sum over many steps"


def test_a_run_is_watched_more_strictly_after_a_roll_back() -> None:
    usual = {"policy/old_kl": 0.0005}
    records = [
        *lines(20, (range(1, 21), usual), (range(8, 9), {"policy/old_kl": 0.03})),
        *(evaluation(4, 0.8, 0.73, 0.87), evaluation(9, 0.68, 0.61, 0.75)),
    ]

    def detectors(iteration: int, *earlier: Done) -> list[str]:
        return [each.detector for each in examine(ALL_ON, records, iteration, earlier)]

    assert [detectors(each) for each in (8, 10)] == [[], []]
    once, fell = Done(7, 4, "kl_runaway"), Done(7, 4, "result_drop")
    assert [detectors(each, once) for each in (8, 10)] == [["kl_runaway"], []], "that detector alone"
    assert [detectors(each, fell) for each in (8, 10)] == [[], ["result_drop"]]
    assert detectors(10, fell._replace(found=6)) == [], "the run has passed the finding by more than three iterations"
    assert detectors(8, once, once, once) == [], "a strict threshold ends no run"


def test_a_density_collapses_by_nats() -> None:
    config = HealthConfig.model_validate({"entropy_collapse": {"action": "notify", "max_fall": 3.0}})
    falling = [line | {"policy/entropy": 1.0 - 0.2 * line["iteration"]} for line in lines(25)]
    # The first five iterations have the median 0.4; from iteration 18 on the entropy is below -2.6 - 1e-9.
    assert first_alarms(falling, config) == {"entropy_collapse": [21]}
    share = HealthConfig.model_validate({"entropy_collapse": {"action": "notify"}})
    negative = [line | {"policy/entropy": -1.0 - line["iteration"]} for line in lines(25)]
    assert first_alarms(negative, share) == {}


def test_the_length_limit_says_that_rows_are_cut() -> None:
    config = HealthConfig.model_validate({"length_drift": {"action": "notify", "limit": 100.0}})
    assert first_alarms(lines(9, (range(4, 9), {"rollout/episode_steps": 99.9}))) == {}
    assert first_alarms(lines(9, (range(4, 9), {"rollout/episode_steps": 100.0})), config) == {"length_drift": [6]}


def test_only_nan_is_on_by_default() -> None:
    assert watches(HealthConfig()).keys() == {"nan"} and not reads_history(HealthConfig())
    assert reads_history(ALL_ON) and watches(ALL_ON).keys() == {*UNTIMED, *TIMED, "nan"}
    assert first_alarms(lines(30, (FROM_20, {"policy/entropy": 0.0})), HealthConfig()) == {}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40), st.lists(st.floats(0.45, 0.55), max_size=4))
def test_a_constant_or_noisy_run_is_healthy(seed: int, count: int, rates: list[float]) -> None:
    noise = random.Random(seed)
    records = [
        {name: value * noise.uniform(0.7, 1.4) if name in HEALTHY else value for name, value in line.items()}
        for line in lines(count)
    ]
    held_out = [evaluation(5 * index, rate, rate - 0.1, rate + 0.1) for index, rate in enumerate(rates)]
    assert examine(ALL_ON, [*records, *held_out], count) == []


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(["train/grad_norm", "rollout/episode_steps", "perf/iteration_seconds", "policy/entropy"]),
    *(st.floats(1e-3, 1e3), st.floats(1.0, 40.0)),
)
def test_ratios_do_not_depend_on_the_scale(name: str, scale: float, factor: float) -> None:
    change = {name: HEALTHY[name] * (1 / factor if name == "policy/entropy" else factor)}
    records = lines(16, (range(12, 17), change))
    scaled = [line | {name: line[name] * scale} for line in records]
    for iteration in (12, 13, 14):
        found, same = ([each.detector for each in examine(ALL_ON, r, iteration)] for r in (records, scaled))
        assert found == same


def stuck(history: History, config: Any) -> Finding | None:
    """Find a success rate that stays as it is."""
    values = history.recent("rollout/success_rate", 3)
    if len(set(values)) != 1 or config.settings.get("off"):
        return None
    return Finding("rollout/success_rate", values[-1], 0.0, "nothing moves")


def timed(history: History, config: Any) -> Finding | None:
    """Find any metric that depends on timing."""
    seconds = history.newest("perf/iteration_seconds")
    return None if seconds is None else Finding("perf/iteration_seconds", seconds, 0.0, "it has a time")


def test_a_detector_of_ones_own_is_named_by_its_function() -> None:
    own = {"mine": {"function": f"{__name__}:stuck", "action": "notify"}}
    assert first_alarms(lines(5), HealthConfig.model_validate({"own": own})) == {"mine": [3]}
    own["mine"]["settings"] = {"off": 1.0}  # type: ignore[assignment]
    assert first_alarms(lines(5), HealthConfig.model_validate({"own": own})) == {}


def test_a_detector_that_rolls_back_sees_no_times() -> None:
    own = {"function": f"{__name__}:timed", "action": "notify"}
    config = HealthConfig.model_validate({"own": {"mine": own}})
    [alarm] = examine(config, lines(1), 1)
    assert alarm.timed and alarm.metric == "perf/health/mine"
    assert examine(HealthConfig.model_validate({"own": {"mine": own | {"action": "roll_back"}}}), lines(1), 1) == []


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"own": {"mine": {"function": "nowhere:f"}}}, "cannot be imported"),
        ({"own": {"mine": {"function": "stuck"}}}, "must be module:function"),
        ({"own": {"mine": {"function": f"{__name__}:first_alarms_of"}}}, "cannot be imported"),
        ({"own": {"nan": {"function": f"{__name__}:stuck"}}}, "no other key of health"),
        ({"own": {"My": {"function": f"{__name__}:stuck"}}}, "must match"),
        ({"spike": {"factor": 1.0}}, "greater than 1"),
        ({"throughput_drop": {"action": "roll_back"}}, "'notify', 'pause' or 'cancel'"),
        ({"nan": {"action": "notify"}}, "'roll_back' or 'cancel'"),
        ({"spike": {"changes": {}}}, "at least 1"),
    ],
)
def test_mistakes_are_refused(values: dict[str, Any], part: str) -> None:
    with pytest.raises(ValueError, match=part):
        HealthConfig.model_validate(values)
