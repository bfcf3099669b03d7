"""Time on cores, and in the queue of one."""

import time

from embodyflow.process.core_time import CoreTime, core_time_so_far


def test_work_computes_and_a_sleep_does_neither() -> None:
    before, began = core_time_so_far(), time.perf_counter()
    while time.perf_counter() - began < 0.2:
        pass
    used, whole = core_time_so_far() - before, time.perf_counter() - began
    assert 0 < used.computing <= whole + 0.01 and used.queued >= 0
    # Together they are all of the time; other threads of the process may compute as well.
    assert abs(used.computing + used.queued - whole) < 0.1 or used.queued == 0
    before = core_time_so_far()
    time.sleep(0.2)
    assert (core_time_so_far() - before).computing < 0.1


def test_times_of_ranks_add_up() -> None:
    assert CoreTime(1.0, 2.0) + CoreTime(0.5, 0.25) - CoreTime(1.0, 1.0) == CoreTime(0.5, 1.25)
