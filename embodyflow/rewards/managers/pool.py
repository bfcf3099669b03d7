"""Manager that runs the reward function in a pool of processes, with a deadline per sample."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait

from embodyflow.errors import ConfigError, RewardError
from embodyflow.process.child import await_end, receive, send, start_child
from embodyflow.rewards.interface import Sample, Score, outcome
from embodyflow.rewards.managers import pool_worker
from embodyflow.rewards.reward_config import FunctionConfig, ParallelConfig

TIMED_OUT = "timed_out"
"""Name of the score part that counts samples that exceeded the time limit."""
START_SECONDS = 120.0
"""Timeout for a process to import its function."""


@dataclass
class _Job:
    index: int
    sample: Sample
    failures: int = 0


@dataclass(frozen=True)
class _Failure:
    """A process hung or died before it finished its task."""

    reason: str
    overdue: bool


class ParallelRewardManager:
    """Scores samples in several processes; replaces a process that hangs or dies and retries its sample.

    The processes are fresh interpreters: forks are unsafe with threads (torch, Ray), and the spawn method of
    ``multiprocessing`` imports the caller's ``__main__`` again. They start with the first samples and run until
    :meth:`close`. Processes that a function starts end with its sample.
    """

    def __init__(self, function: FunctionConfig, config: ParallelConfig) -> None:
        self._function, self._config = function, config
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """Return a score for each sample.

        Raises:
            RewardError: The function raised, or its process hung or died in each attempt.
            ConfigError: A process cannot build the function.
        """
        with self._lock:
            waiting = deque(_Job(index, sample) for index, sample in enumerate(samples))
            scores: dict[int, Score] = {}
            try:
                while len(scores) < len(samples):
                    self._assign_jobs(waiting, len(samples) - len(scores))
                    for worker in self._wait_for_reports():
                        self._handle_report(worker, waiting, scores)
            except BaseException:
                for worker in self._workers:
                    if not worker.idle:  # its score is no longer needed
                        worker.kill()
                raise
            return [scores[index] for index in range(len(samples))]

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            for worker in self._workers:
                worker.kill()
            self._workers = []

    def _assign_jobs(self, waiting: deque[_Job], num_unscored: int) -> None:
        self._workers = [worker for worker in self._workers if not worker.ended]
        while len(self._workers) < min(self._config.num_workers, num_unscored):
            self._workers.append(_Worker(self._function, self._config))
        for worker in self._workers:
            if worker.idle and waiting:
                worker.assign(waiting.popleft())

    def _wait_for_reports(self) -> list["_Worker"]:
        """Wait until a worker has a report or exceeds its deadline; return all such workers."""
        busy = [worker for worker in self._workers if not worker.idle]
        timeout = min(worker.deadline for worker in busy) - time.monotonic()
        readable = wait([worker.connection for worker in busy], timeout=max(0.0, timeout))
        now = time.monotonic()
        return [worker for worker in busy if worker.connection in readable or worker.deadline <= now]

    def _handle_report(self, worker: "_Worker", waiting: deque[_Job], scores: dict[int, Score]) -> None:
        job, report = worker.job, worker.report()
        if job is None:
            if isinstance(report, _Failure):
                raise ConfigError(f"function: its process {report.reason} before the first sample")
        elif isinstance(report, Score):
            scores[job.index] = self._with_timed_out(report)
        elif isinstance(report, RewardError):
            raise report
        elif isinstance(report, _Failure):
            job.failures += 1
            if job.failures <= self._config.retries:
                waiting.append(job)
            elif report.overdue and self._config.overdue == "incorrect":
                scores[job.index] = outcome(False, **{TIMED_OUT: 1.0})
            else:
                raise RewardError(job.sample.uid, f"its process {report.reason}, {job.failures} times in a row")

    def _with_timed_out(self, score: Score) -> Score:
        """Add the part ``timed_out`` = 0 if other samples may have 1, so its mean is the share of timeouts."""
        if self._config.overdue == "error":
            return score
        return replace(score, parts={**score.parts, TIMED_OUT: 0.0})


class _Worker:
    """A process of the pool: starting, idle, scoring a sample or ended."""

    def __init__(self, function: FunctionConfig, config: ParallelConfig) -> None:
        self._config = config
        self._process, self.connection = start_child(pool_worker.__name__, start_new_session=True)
        self.job: _Job | None = None
        self.deadline = time.monotonic() + START_SECONDS
        self.ended = self._ready = False
        memory_limit = None if config.memory_gb is None else round(config.memory_gb * 1e9)
        self._send((function, config.time_limit, memory_limit))

    @property
    def idle(self) -> bool:
        """True if the process can take a sample."""
        return self._ready and self.job is None and not self.ended

    def assign(self, job: _Job) -> None:
        """Start scoring a sample; its deadline begins now."""
        self.job, self.deadline = job, time.monotonic() + self._config.time_limit
        self._send(job.sample)

    def report(self) -> Score | RewardError | _Failure | None:
        """Return the score, error or failure of the current sample; ``None`` once the function is built."""
        try:
            answer = receive(self.connection) if self.connection.poll() else None
        except (EOFError, OSError):
            await_end(self._process.pid, seconds=1.0)
            return _Failure(f"died, exit code {self.kill()}", overdue=False)
        if answer is None:
            self.kill()
            limit = f"time_limit={self._config.time_limit:g}" if self._ready else f"{START_SECONDS:g}"
            return _Failure(f"did not answer within {limit} s", overdue=True)
        self.job = None
        if self._ready:
            return answer
        if answer != pool_worker.READY:
            self.kill()
            return _Failure(str(answer), overdue=False)
        self._ready = True
        return None

    def kill(self) -> int:
        """Kill the process and its descendants, if they still run; return its exit code."""
        if not self.ended:
            self.ended = True
            self.connection.close()
            _kill_tree(self._process)
        return self._process.wait()

    def _send(self, message: object) -> None:
        with contextlib.suppress(OSError):  # the process died, and report() returns that failure
            send(self.connection, message)


def _kill_tree(process: "subprocess.Popen[bytes]") -> None:
    """Kill a session leader, its session and all its other descendants."""
    pool_worker.kill_descendants(process.pid)
    with contextlib.suppress(ProcessLookupError):  # the pid is not reused until the process is waited for
        os.killpg(process.pid, signal.SIGKILL)
