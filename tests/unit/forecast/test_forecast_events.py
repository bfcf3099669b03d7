"""The simulation of jobs on lanes and cores, against schedules computed by hand and against bounds."""

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodyflow.forecast.events import Job, Period, simulate


def computing(name: str, seconds: float, lane: str = "", after: Sequence[int] = ()) -> Job:
    """Return a job that computes all the time."""
    return Job(name, (lane,) if lane else (), seconds, seconds, tuple(after))


def ends(jobs: Sequence[Job], cores: float = math.inf) -> list[float]:
    return [period.end for period in simulate(jobs, cores)]


def test_a_lane_runs_one_job_at_a_time_in_order() -> None:
    jobs = [computing("first", 2, "lane"), computing("second", 1, "lane"), computing("beside", 1)]
    assert ends(jobs) == [2, 3, 1]


def test_a_job_begins_when_all_before_it_have_ended() -> None:
    jobs = [computing("short", 1), computing("long", 3), computing("last", 1, after=[0, 1])]
    assert simulate(jobs)[2] == Period(3, 4, None)


def test_two_workers_on_one_core_take_turns() -> None:
    assert ends([computing("left", 1, "0"), computing("right", 1, "1")], cores=1) == [2, 2]
    # The short one has half a core until it ends at 2 s; the long one has done 1 of its 3 s by then.
    assert ends([computing("short", 1, "0"), computing("long", 3, "1")], cores=1) == [2, 4]
    assert ends([computing("short", 1, "0"), computing("long", 3, "1")], cores=2) == [1, 3]


def test_work_that_waits_leaves_the_core_to_others() -> None:
    waiting = Job("waits half of the time", ("0",), 2.0, 1.0)
    assert ends([waiting, Job("waits too", ("1",), 2.0, 1.0)], cores=1) == [2, 2]
    # A demand of 0.2 is met; the other gets the rest, 0.8 cores, until the first has ended.
    assert ends([Job("waits", ("0",), 5.0, 1.0), computing("computes", 4, "1")], cores=1) == [5, 5]


def test_processes_get_equal_shares_of_the_cores() -> None:
    """Four processes that compute for 1 s each and a fifth one on two cores have 0.4 cores each."""
    four = Job("four", ("0",), 1.0, 4.0, processes=4)
    assert ends([four, computing("fifth", 1, "1")], cores=2) == [2.5, 2.5]
    assert ends([four], cores=2) == [2]


def test_a_job_without_a_duration_ends_at_once_and_frees_its_lane() -> None:
    jobs = [computing("nothing", 0, "lane"), computing("work", 1, "lane"), computing("then", 0, after=[1])]
    assert ends(jobs) == [0, 1, 1]


def test_a_job_takes_the_first_free_lane() -> None:
    jobs = [Job(str(number), ("0", "1"), seconds) for number, seconds in enumerate((3.0, 1.0, 1.0))]
    assert [period.lane for period in simulate(jobs)] == ["0", "1", "1"]
    assert ends(jobs) == [3, 1, 2]


def test_mistakes_are_refused() -> None:
    with pytest.raises(ValueError, match="only wait for earlier jobs"):
        simulate([computing("itself", 1, after=[0])])
    with pytest.raises(ValueError, match="cores=0"):
        simulate([], cores=0)


@st.composite
def jobs_on_lanes(draw: st.DrawFn) -> list[Job]:
    jobs: list[Job] = []
    for number in range(draw(st.integers(1, 12))):
        seconds = draw(st.sampled_from([0.0, 0.5, 1.0, 2.5]))
        processes = draw(st.integers(1, 4))
        busy = draw(st.sampled_from([0.0, 0.3, 1.0]))
        after = draw(st.sets(st.integers(0, number - 1), max_size=2)) if number else set()
        lanes = draw(st.sampled_from([(), ("0",), ("1",), ("0", "1")]))
        jobs.append(Job(str(number), lanes, seconds, seconds * processes * busy, tuple(sorted(after)), processes))
    return jobs


@given(jobs_on_lanes(), st.sampled_from([0.5, 1.0, 2.0, 7.0]))
@settings(deadline=None)
def test_no_schedule_beats_its_critical_path_or_its_cores(jobs: list[Job], cores: float) -> None:
    periods = simulate(jobs, cores)
    path: list[float] = []
    for job, period in zip(jobs, periods, strict=True):
        before = max((periods[each].end for each in job.after), default=0.0)
        assert period.begin >= before - 1e-9 and period.end - period.begin >= job.seconds - 1e-6
        path.append(max((path[each] for each in job.after), default=0.0) + job.seconds)
    last = max(period.end for period in periods)
    assert last >= max(path) - 1e-6
    assert last >= sum(job.computing for job in jobs) / cores - 1e-6
    for lane in ("0", "1"):
        held = sorted((each.begin, each.end) for each in periods if each.lane == lane)
        assert all(end <= begin + 1e-9 for (_, end), (begin, _) in pairwise(held))


@given(jobs_on_lanes())
@settings(deadline=None)
def test_with_enough_cores_each_job_takes_its_seconds(jobs: list[Job]) -> None:
    for job, period in zip(jobs, simulate(jobs, cores=100.0), strict=True):
        assert period.end - period.begin == pytest.approx(job.seconds)
