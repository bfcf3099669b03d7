"""Time on cores, and in the queue of one."""

import time

from embodyflow.process.core_time import CoreTime, core_time_so_far


def test_work_computes_and_a_sleep_does_neither() -> None:
    outer, before, inner = time.perf_counter(), core_time_so_far(), time.perf_counter()
    while time.perf_counter() - inner < 0.2:
        pass
    inside = time.perf_counter() - inner
    used, outside = core_time_so_far() - before, time.perf_counter() - outer
    assert used.computing > 0 and used.queued >= 0
    # Together they are all of the time between the two readings. A busy machine may take the core at either of them.
    # On one without the kernel's counts there is no time in the queue.
    assert inside - 0.1 < used.computing + used.queued < outside + 0.1 or used.queued == 0
    before = core_time_so_far()
    time.sleep(0.2)
    assert (core_time_so_far() - before).computing < 0.1


def test_times_of_ranks_add_up() -> None:
    assert CoreTime(1.0, 2.0) + CoreTime(0.5, 0.25) - CoreTime(1.0, 1.0) == CoreTime(0.5, 1.25)
