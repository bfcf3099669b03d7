"""Rewards in processes of their own, each sample with a deadline."""

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
from embodyflow.rewards.managers import pool_worker
from embodyflow.rewards.reward_config import FunctionConfig, ParallelConfig
from embodyflow.rewards.reward_interface import Sample, Score, outcome

TIMED_OUT = "timed_out"
"""The part of a score that counts samples that hung."""
START_SECONDS = 120.0
"""How long a process has for its imports."""


@dataclass
class _Job:
    index: int
    sample: Sample
    failures: int = 0


@dataclass(frozen=True)
class _Failure:
    """A process is lost, and what it was doing is not done."""

    reason: str
    overdue: bool


class ParallelRewardManager:
    """Scores samples in processes; one that hangs or dies is replaced and its sample tried again.

    Fresh interpreters rather than forks, which are unsafe beside threads (torch, Ray), and rather than
    ``multiprocessing``'s spawn, which imports the caller's ``__main__`` again. They start with the first samples and
    stay until :meth:`close`; a process that a function starts is ended with its sample.
    """

    def __init__(self, function: FunctionConfig, config: ParallelConfig) -> None:
        self._function, self._config = function, config
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """Return a score for each sample.

        Raises:
            RewardError: the function raised, or hung or died each time it was tried.
            ConfigError: the function cannot be built in a process of its own.
        """
        with self._lock:
            waiting = deque(_Job(index, sample) for index, sample in enumerate(samples))
            scores: dict[int, Score] = {}
            try:
                while len(scores) < len(samples):
                    self._hand_out(waiting, len(samples) - len(scores))
                    for worker in self._next_reports():
                        self._settle(worker, waiting, scores)
            except BaseException:
                for worker in self._workers:
                    if not worker.idle:  # its sample is of no interest any more
                        worker.end()
                raise
            return [scores[index] for index in range(len(samples))]

    def close(self) -> None:
        """End the processes."""
        with self._lock:
            for worker in self._workers:
                worker.end()
            self._workers = []

    def _hand_out(self, waiting: deque[_Job], num_open: int) -> None:
        self._workers = [worker for worker in self._workers if not worker.ended]
        while len(self._workers) < min(self._config.num_workers, num_open):
            self._workers.append(_Worker(self._function, self._config))
        for worker in self._workers:
            if worker.idle and waiting:
                worker.give(waiting.popleft())

    def _next_reports(self) -> list["_Worker"]:
        """Wait for the first workers that have something to say, or are overdue."""
        busy = [worker for worker in self._workers if not worker.idle]
        patience = min(worker.deadline for worker in busy) - time.monotonic()
        said = wait([worker.connection for worker in busy], timeout=max(0.0, patience))
        now = time.monotonic()
        return [worker for worker in busy if worker.connection in said or worker.deadline <= now]

    def _settle(self, worker: "_Worker", waiting: deque[_Job], scores: dict[int, Score]) -> None:
        job, report = worker.job, worker.report()
        if job is None:
            if isinstance(report, _Failure):
                raise ConfigError(f"function: its process {report.reason} before the first sample")
        elif isinstance(report, Score):
            scores[job.index] = self._counted(report)
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

    def _counted(self, score: Score) -> Score:
        """Say of a sample that it did not time out, where others may: the mean of the part is then their share."""
        if self._config.overdue == "error":
            return score
        return replace(score, parts={**score.parts, TIMED_OUT: 0.0})


class _Worker:
    """One process: starting, idle, scoring a sample, or ended."""

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
        """Whether it can be given a sample."""
        return self._ready and self.job is None and not self.ended

    def give(self, job: _Job) -> None:
        """Let it score a sample, from now on."""
        self.job, self.deadline = job, time.monotonic() + self._config.time_limit
        self._send(job.sample)

    def report(self) -> Score | RewardError | _Failure | None:
        """Return what came of its sample; ``None`` where it has just become ready."""
        try:
            answer = receive(self.connection) if self.connection.poll() else None
        except (EOFError, OSError):
            await_end(self._process.pid, seconds=1.0)
            return _Failure(f"died, exit code {self.end()}", overdue=False)
        if answer is None:
            self.end()
            limit = f"time_limit={self._config.time_limit:g}" if self._ready else f"{START_SECONDS:g}"
            return _Failure(f"did not answer within {limit} s", overdue=True)
        self.job = None
        if self._ready:
            return answer
        if answer != pool_worker.READY:
            self.end()
            return _Failure(str(answer), overdue=False)
        self._ready = True
        return None

    def end(self) -> int:
        """Kill it with everything it has started; return its exit code."""
        if not self.ended:
            self.ended = True
            self.connection.close()
            _kill_family(self._process)
        return self._process.wait()

    def _send(self, message: object) -> None:
        with contextlib.suppress(OSError):  # it died: report() says so
            send(self.connection, message)


def _kill_family(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process that leads its session, its session, and whatever else descends from it."""
    pool_worker.kill_descendants(process.pid)
    with contextlib.suppress(ProcessLookupError):  # not before it is waited for does its number become another's
        os.killpg(process.pid, signal.SIGKILL)
