"""The folder of a run: everything that a run leaves on disk.

::

    runs/<run_id>/
        config.yaml       the resolved configuration
        flow_run          id of the Prefect flow run that created the folder
        metrics.jsonl     one line per iteration; 0 is before the first
        status.json       current stage and iteration
        run.log           what the flow run logged
        processes.json    process ids by name, of the last process group that worked on the run
        summary.json      written at the end
        ledger.jsonl      what is committed: :mod:`embodyflow.record.ledger`
        origin/iteration-000040/         branches off another run's weights only: the checkpoint that has them
        checkpoints/iteration-000005/    complete once it has that name: :mod:`embodyflow.record.checkpoints`
        stages/iteration-000006/<node>/  rows of an iteration in progress: :mod:`.episodes.stage_rows`
        stream/<node>/<group>/           rows of single groups, in streaming: :mod:`.episodes.group_rows`
        evaluating/iteration-000005/     checkpoint that is evaluated beside training, until the result is recorded
        evaluations/iteration-000005/<node>/  rows of an evaluation beside training, until it is recorded
        open_episodes/    control jobs only: episodes that span iterations
        labelled/iteration-000005  episodes of a success classifier: :mod:`embodyflow.record.episodes.labelled_episodes`
        episodes/iteration-000005/       recorded episodes: :mod:`embodyflow.record.episodes.episode_folders`
        question.json, answer.json       while the run is paused: :mod:`embodyflow.record.answers`
        unrestorable.json  tasks whose seed does not restore an episode, if env.allow_unrestorable accepts some
        observations.json  digest of the policy's first observation of each task
        evaluation.json    evaluations only: success by task; until it exists, evaluated/ has the evaluated checkpoint
        weights            evaluations only: digest of the evaluated weights
        policy/            the exported policy, written at the end
        trace/             with tracking.trace: what each process did when; trace.json has all of it
        profiles/          with trainer.profile: iteration-000005-rank-0.json.gz, by torch.profiler
        dataset/          episodes as a data set: :mod:`embodyflow.cli.episodes.export_dataset`
        videos/, plots/, examples/, tensorboard/
"""

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from embodyflow.config import RunConfig
from embodyflow.config.base import RUN_NAME_PATTERN
from embodyflow.errors import ConfigError, StorageError
from embodyflow.process.files.durable_files import flush, make_folder, write_atomically, write_durably
from embodyflow.process.files.file_lock import hold_lock, holder
from embodyflow.record.checkpoints import Checkpoints
from embodyflow.record.episodes.episode_folders import EpisodeFolders
from embodyflow.record.episodes.group_rows import GroupRows
from embodyflow.record.episodes.stage_rows import StageRows
from embodyflow.record.folder_files import read_config, read_json
from embodyflow.record.metrics_log import MetricsLog
from embodyflow.workers.rank.profiles import PROFILES

UNRESTORABLE_FILE = "unrestorable.json"


class RunFolder:
    """Reads and writes one run's folder.

    Args:
        path: The folder.

    Attributes:
        checkpoints: Checkpoints of the run.
        origin: Checkpoint of another run whose weights this one begins with.
        stages: Rows of iterations that are not committed yet.
        groups: Rows of single groups that are not trained yet.
        evaluating: Checkpoints that are evaluated beside training.
        evaluations: Rows of evaluations beside training that are not recorded yet.
        episodes: Recorded episodes.
        metrics: Metrics by iteration.
        ledger_path: File of the ledger.
        summary_path: File of the summary; it exists once the run is complete.
        log_path: File of the log.
        trace_folder: Folder with the trace of each process.
        trace_path: File of the joined trace.
        profiles: Folder with the profiles of the trainer's ranks.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = Checkpoints(path / "checkpoints")
        self.origin = Checkpoints(path / "origin")
        self.stages = StageRows(path / "stages")
        self.groups = GroupRows(path / "stream")
        self.evaluating = Checkpoints(path / "evaluating")
        self.evaluations = StageRows(path / "evaluations")
        self.episodes = EpisodeFolders(path / "episodes")
        self.metrics = MetricsLog(path / "metrics.jsonl")
        self.ledger_path = path / "ledger.jsonl"
        self.summary_path = path / "summary.json"
        self.log_path = path / "run.log"
        self.trace_folder, self.trace_path = path / "trace", path / "trace.json"
        self.profiles = path / PROFILES
        self._lock_path = path / ".lock"
        self._held_lock: os.stat_result | None = None

    def checkpoints_of(self, iteration: int) -> Checkpoints:
        """Return the checkpoints that have the one of an iteration, which may only wait for its evaluation."""
        return self.checkpoints if self.checkpoints.folder(iteration).exists() else self.evaluating

    @classmethod
    def create(
        cls,
        config: RunConfig,
        notes: Mapping[str, str] | None = None,
        fill: Callable[[Path], None] | None = None,
    ) -> "RunFolder":
        """Create the folder of a new run in one step: a kill leaves the whole folder or none.

        Args:
            config: Run configuration.
            notes: Text of further files, by name.
            fill: Function that writes what else the new folder has.

        Raises:
            ConfigError: A run of that name exists, or the folder cannot be created.
        """
        path = config.run_dir
        unfinished = _unfinished(path)
        settings = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
        try:
            make_folder(path.parent)
            _clear(unfinished)
            unfinished.mkdir()
            for name, text in {"config.yaml": settings, **_restorability(config), **(notes or {})}.items():
                write_durably(unfinished / name, text)
            if fill is not None:
                fill(unfinished)
            unfinished.replace(path)
            flush(path.parent)
        except OSError as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise ConfigError(
                    f"run_id={config.run_id}: {path} exists; choose another run_id or resume={config.run_id}"
                ) from None
            raise ConfigError(f"run_root={config.run_root}: {path} cannot be created: {error.strerror}") from error
        return cls(path)

    @classmethod
    def open(cls, run_root: str, run_id: str, key: str = "resume") -> "RunFolder":
        """Open the folder of an earlier run, to resume it or to branch off it.

        Args:
            run_root: Folder of the runs.
            run_id: Name of the run.
            key: Key that names the run, for messages.

        Raises:
            ConfigError: ``run_id`` is not the name of a run but, for example, a path; or no such run exists, and the
                message names those that do.
        """
        if re.fullmatch(RUN_NAME_PATTERN, run_id) is None:
            raise ConfigError(
                f"{key}={run_id!r}: must be the name of a run in {run_root}/, {RUN_NAME_PATTERN}; "
                "run_root=<folder> finds a run of another folder"
            )
        path = Path(run_root) / run_id
        if not (path / "config.yaml").is_file():
            known = sorted(p.parent.name for p in Path(run_root).glob("[!.]*/config.yaml"))
            shown = ", ".join(known[-5:]) or "none yet"
            raise ConfigError(f"{key}={run_id}: {run_root}/ has no such run; allowed are {shown}")
        return cls(path)

    def remove(self) -> None:
        """Remove the run in one step: a kill leaves the whole folder or none of that name.

        Raises:
            ConfigError: The folder is a symbolic link, whose target may be on another disk for a reason.
        """
        if self.path.is_symlink():
            raise ConfigError(
                f"run_id={self.path.name}: {self.path} is a symbolic link, which is not removed; remove it, or choose "
                "another run_id"
            )
        unfinished = _unfinished(self.path)
        _clear(unfinished)
        self.path.replace(unfinished)
        flush(self.path.parent)
        shutil.rmtree(unfinished)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the run against all other processes; the lock ends with this process, even if it is killed.

        Raises:
            ConfigError: Another process holds the lock, which the message names; or the folder is not writable.
        """
        with hold_lock(
            self._lock_path,
            lambda pid: f"run_id={self.path.name}: process {pid} is at work on this run; wait for its end",
        ):
            self._held_lock = self._lock_path.stat()
            try:
                yield
            finally:
                self._held_lock = None

    def require_present(self) -> None:
        """Check that the folder exists, and within :meth:`locked` that it is still the locked one.

        Raises:
            StorageError: The folder was deleted, or another run replaced it.
        """
        if not self.is_present():
            raise StorageError(f"{self.path}: was removed while the run was at work; start another run")

    def is_present(self) -> bool:
        """Return True if the folder exists and, within :meth:`locked`, is still the locked one."""
        if self._held_lock is None:
            return self.path.is_dir()
        try:
            return os.path.samestat(self._lock_path.stat(), self._held_lock)
        except FileNotFoundError:
            return False

    def refuse_if_locked(self) -> None:
        """Check that the run can be locked, without creating a file.

        Raises:
            ConfigError: Another process holds the lock; the message names it.
        """
        if self._lock_path.exists():
            with self.locked():
                pass

    def worker_pid(self) -> int | None:
        """Return the id of the process that holds the lock, ``None`` without one; the folder may be another user's."""
        return holder(self._lock_path)

    def config(self) -> dict[str, Any]:
        """Return the configuration the run was started with.

        Raises:
            ConfigError: ``config.yaml`` is damaged.
        """
        return read_config(self.path / "config.yaml")

    def write_status(self, stage: str, iteration: int, iterations: int) -> None:
        """Write what the run is doing to ``status.json``."""
        status = {"stage": stage, "iteration": iteration, "iterations": iterations}
        write_atomically(self.path / "status.json", json.dumps(status))

    def write_examples(self, iteration: int, examples: list[dict[str, Any]]) -> None:
        """Write examples of an evaluation to ``examples/``, one per line."""
        lines = "".join(json.dumps(row) + "\n" for row in examples)
        write_atomically(self.subfolder("examples") / f"iteration-{iteration:06d}.jsonl", lines)

    def write_processes(self, pids: dict[str, int]) -> None:
        """Write the ids of the run's processes to ``processes.json``, by name."""
        write_atomically(self.path / "processes.json", json.dumps(pids, indent=2))

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write ``summary.json``: the run is complete."""
        write_durably(self.summary_path, json.dumps(summary, indent=2) + "\n")

    def summary(self) -> dict[str, Any] | None:
        """Return the content of ``summary.json``; ``None`` if the run is not complete."""
        return read_json(self.summary_path)

    def write_observations(self, observations: dict[str, Any]) -> None:
        """Write the digests of the policy's first observations to ``observations.json``."""
        write_durably(self.path / "observations.json", json.dumps(observations, indent=2) + "\n")

    def observations(self) -> dict[str, Any] | None:
        """Return the content of ``observations.json``; ``None`` if it does not exist."""
        return read_json(self.path / "observations.json")

    def unrestorable(self) -> dict[str, str]:
        """Return the tasks whose seed does not restore an episode, each with the culprit and what differs."""
        return read_json(self.path / UNRESTORABLE_FILE) or {}

    def add_unrestorable(self, found: Mapping[str, str]) -> None:
        """Add tasks to :meth:`unrestorable`; a task that is recorded stays, whatever is found now."""
        recorded = self.unrestorable()
        if found.keys() - recorded.keys():
            write_durably(self.path / UNRESTORABLE_FILE, json.dumps({**found, **recorded}, indent=2) + "\n")

    def write_evaluation(self, result: dict[str, Any]) -> None:
        """Write ``evaluation.json``: the evaluation is complete."""
        write_durably(self.path / "evaluation.json", json.dumps(result, indent=2) + "\n")

    def evaluation(self) -> dict[str, Any] | None:
        """Return the content of ``evaluation.json``; ``None`` if it does not exist."""
        return read_json(self.path / "evaluation.json")

    def is_evaluation(self) -> bool:
        """Return True if the folder holds an evaluation of a policy and not a training run."""
        return any((self.path / name).exists() for name in ("evaluation.json", "evaluated", "weights"))

    def subfolder(self, name: str) -> Path:
        """Return a subfolder; create it if it is missing."""
        folder = self.path / name
        folder.mkdir(exist_ok=True)
        return folder


def _restorability(config: RunConfig) -> dict[str, str]:
    """Return the file about tasks that are not restored by their seed, or nothing for a run without such tasks."""
    found = config.unrestorable()
    return {UNRESTORABLE_FILE: json.dumps(found, indent=2) + "\n"} if found else {}


def unrestorable_lines(unrestorable: Mapping[str, str]) -> list[str]:
    """Format :meth:`RunFolder.unrestorable` for reports, one line per task."""
    return [f"{task}: reset(seed=…) does not restore an episode: {line}" for task, line in unrestorable.items()]


def unfinished_runs(run_root: Path) -> list[RunFolder]:
    """Return the runs that this user can resume, newest last.

    These have a checkpoint, are not complete, and no process holds their lock.
    """
    found = []
    for path in sorted(run_root.glob("[!.]*/ledger.jsonl"), key=lambda path: path.stat().st_mtime):
        folder = RunFolder(path.parent)
        if folder.summary_path.exists() or not folder.checkpoints.committed():
            continue
        try:
            with folder.locked():
                found.append(folder)
        except ConfigError:
            continue
    return found


def _unfinished(path: Path) -> Path:
    """Return the folder in which a run's folder is created or removed; no run has such a name."""
    return path.with_name(f".{path.name}.{os.getpid()}")


def _clear(unfinished: Path) -> None:
    """Remove the leftovers of a killed process that had this process's id."""
    if unfinished.exists():
        shutil.rmtree(unfinished)
