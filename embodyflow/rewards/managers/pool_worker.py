"""Process that scores samples for :class:`~embodyflow.rewards.managers.pool.ParallelRewardManager`.

The reward function runs in the main thread, where signal-based time limits of libraries work.
"""

import contextlib
import ctypes
import os
import resource
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection

import psutil

from embodyflow.errors import RewardError
from embodyflow.process.child import receive, send
from embodyflow.rewards.functions.function_registry import build_reward_function
from embodyflow.rewards.interface import RewardFunction, Sample, Score, check_score
from embodyflow.rewards.reward_config import FunctionConfig

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
READY = "ready"
BACKSTOP_SECONDS = 5.0
"""Seconds after the deadline at which the kernel ends a process whose parent died."""


def main(descriptor: int, parent_pid: int) -> None:
    """Receive and build the reward function, then score samples until the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Orphaned descendants become children of this process, so kill_descendants finds them.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    threading.Thread(target=_exit_with, args=[parent_pid], daemon=True).start()
    connection = Connection(descriptor)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent ended
        function, backstop = _prepare(connection)
        send(connection, READY)
        while True:
            sample = receive(connection)
            # The parent kills this process at the deadline. If the parent is gone and native code holds the
            # interpreter lock, so that no thread here runs, the kernel's alarm ends the process.
            signal.setitimer(signal.ITIMER_REAL, backstop)
            score = _score(function, sample)
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            send(connection, score)


def _prepare(connection: Connection) -> tuple[RewardFunction, float]:
    config: FunctionConfig
    config, time_limit, memory_limit = receive(connection)
    try:
        function: RewardFunction = build_reward_function(config)
    except Exception as error:
        send(connection, f"raised {type(error).__name__}: {error}")
        sys.exit(1)
    if memory_limit is not None:
        resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))
    return function, time_limit + BACKSTOP_SECONDS


def _score(function: RewardFunction, sample: Sample) -> Score | RewardError:
    pid = os.getpid()
    try:
        score = check_score(function(sample), sample.uid)
        return Score(float(score.reward), score.correct, {name: float(part) for name, part in score.parts.items()})
    except RewardError as error:
        return error
    except (Exception, SystemExit) as error:
        return RewardError(sample.uid, f"the reward function raised {type(error).__name__}: {error}")
    finally:
        if os.getpid() != pid:  # the function forked, and this is the child
            os._exit(0)
        _end_children()


def _end_children() -> None:
    """End the processes that the function started and left running."""
    while True:
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        kill_descendants(os.getpid())


def kill_descendants(pid: int) -> None:
    """Kill all descendants of a process, in whatever session they run."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


def _exit_with(parent_pid: int) -> None:
    """End this process and its descendants when the parent ends, even while a function hangs."""
    while os.getppid() == parent_pid:
        time.sleep(1.0)
    kill_descendants(os.getpid())
    os.killpg(0, signal.SIGKILL)
