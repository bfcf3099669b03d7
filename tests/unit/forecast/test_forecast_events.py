"""The simulation of jobs on lanes and cores, against schedules computed by hand and against bounds."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodyflow.forecast.events import Job, Period, simulate
from embodyflow.forecast.machine import Machine


def computing(name: str, seconds: float, lane: str = "", after: Sequence[int] = ()) -> Job:
    """Return a job that computes all the time."""
    return Job(name, (lane,) if lane else (), seconds, seconds, tuple(after))


def ends(jobs: Sequence[Job], cores: float = math.inf, services: float = 0.0) -> list[float]:
    """Return when jobs end on cores whose caches are as good for many processes as for one."""
    return [period.end for period in simulate(jobs, Machine(cores, services, sharing=0.0))]


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


def test_ranks_in_lockstep_do_not_compute_while_they_wait() -> None:
    """Four ranks compute for 1 s each and wait for 0.5 s: two cores take 2 s of computing and 0.5 s of waiting."""
    together = Job("together", ("0",), 1.5, 4.0, processes=4, lockstep=True)
    assert ends([together], cores=2) == [pytest.approx(2.5)]
    assert ends([together], cores=4) == [pytest.approx(1.5)]
    assert ends([replace(together, lockstep=False)], cores=2) == [2.0], "others compute while one waits"


@given(computes=st.floats(0.01, 5), waits=st.floats(0.01, 5), ranks=st.integers(1, 6), cores=st.sampled_from([1, 2, 4]))
def test_ranks_in_lockstep_wait_and_share_what_services_leave(
    computes: float, waits: float, ranks: int, cores: int
) -> None:
    """n ranks on c cores beside services of r cores take W + u · max(n / (c − r), 1)."""
    services = cores / 10
    job = Job("together", (), computes + waits, ranks * computes, processes=ranks, lockstep=True)
    expected = waits + computes * max(ranks / (cores - services), 1.0)
    assert ends([job], cores, services) == [pytest.approx(expected, rel=1e-6)]


def test_other_work_has_the_cores_while_ranks_in_lockstep_wait() -> None:
    """In each of eight rounds two ranks compute for 1/8 s and wait for 1/8 s, beside work of 1 s, on two cores.

    Three processes have 2/3 core each, so 1/8 s of computing takes 3/16 s, in which the other work does 1/8 s, and
    another 1/8 s while the ranks wait. So it is done after four rounds of 5/16 s. The other four take 1/4 s each.
    """
    together = Job("together", ("0",), 2.0, 2.0, processes=2, lockstep=True)
    assert ends([together, computing("beside", 1)], cores=2) == [pytest.approx(2.25), pytest.approx(1.25)]


def test_services_have_their_share_of_the_cores_all_the_time() -> None:
    """Beside services of half a core, 1.5 of two cores are left to two processes; a single one does not notice them."""
    assert ends([Job("two", ("0",), 1.5, 3.0, processes=2)], cores=2, services=0.5) == [2.0]
    assert ends([computing("one", 1.5)], cores=2, services=0.5) == [1.5]
    # On one core three processes have a third each: the services get no more than the others.
    assert ends([Job("two", ("0",), 1.0, 2.0, processes=2)], cores=1, services=0.5) == [pytest.approx(3.0)]


def test_processes_that_share_cores_take_their_caches_from_one_another() -> None:
    """Four processes on two cores leave 1 - 2 / 4 of what they want, so their work takes 1.1 times the CPU seconds."""
    machine = Machine(cores=2.0, sharing=0.2)
    assert [machine.dilation(demand) for demand in (0.0, 1.0, 2.0, 4.0)] == pytest.approx([1.0, 1.0, 1.0, 1.1])

    def last_of(*jobs: Job) -> float:
        return max(period.end for period in simulate(jobs, machine))

    assert last_of(Job("four", ("0",), 1.0, 4.0, processes=4)) == pytest.approx(2 * 1.1)
    assert last_of(Job("two", ("0",), 1.0, 2.0, processes=2)) == pytest.approx(1.0)
    # Two processes compute, and four want 0.4 cores together. The two cores are too few for 2.4, but an equal share
    # is more than each of the four wants.
    few, many = Job("few", ("0",), 9.0, 18.0, processes=2), Job("many", ("1",), 1.0, 0.4, processes=4)
    assert simulate([few, many], machine)[1].end == pytest.approx(1.0), "work that waits gets the cores it wants"


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
        simulate([], Machine(cores=0))


@st.composite
def jobs_on_lanes(draw: st.DrawFn) -> list[Job]:
    jobs: list[Job] = []
    for number in range(draw(st.integers(1, 12))):
        seconds = draw(st.sampled_from([0.0, 0.5, 1.0, 2.5]))
        processes = draw(st.integers(1, 4))
        busy = draw(st.sampled_from([0.0, 0.3, 1.0]))
        after = draw(st.sets(st.integers(0, number - 1), max_size=2)) if number else set()
        lanes = draw(st.sampled_from([(), ("0",), ("1",), ("0", "1")]))
        cpu, lockstep = seconds * processes * busy, draw(st.booleans())
        jobs.append(Job(str(number), lanes, seconds, cpu, tuple(sorted(after)), processes, lockstep))
    return jobs


@given(jobs_on_lanes(), st.sampled_from([0.5, 1.0, 2.0, 7.0]), st.sampled_from([0.0, 0.3, 2.5]))
@settings(deadline=None)
def test_no_schedule_beats_its_critical_path_or_its_cores(jobs: list[Job], cores: float, services: float) -> None:
    periods = simulate(jobs, Machine(cores, services))
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
    for job, period in zip(jobs, simulate(jobs, Machine(100.0, services=2.0)), strict=True):
        assert period.end - period.begin == pytest.approx(job.seconds)
