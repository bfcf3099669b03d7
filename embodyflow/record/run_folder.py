"""The folder of a run: what is left of it on disk.

::

    runs/<run_id>/
        config.yaml       the resolved configuration
        flow_run          the Prefect flow run that has made the folder
        metrics.jsonl     one line per iteration (0 is before the first)
        status.json       stage and iteration, for whoever watches
        processes.json    which process is what, of the last that worked on the run
        summary.json      written at the end
        ledger.jsonl      what counts as done: see :mod:`embodyflow.record.ledger`
        checkpoints/iteration-000005/   complete as soon as it has that name
        stages/iteration-000006/<node>/ rows of an iteration that is not committed yet, and what was left over for it
        open_episodes/    of a control job: episodes that go on over iterations
        episodes/iteration-000005/      how its episodes went: :mod:`embodyflow.record.episode_record`
        observations.json  digest of what the policy is shown first of each task
        evaluation.json    of an evaluation: success by task; until it is there, evaluated/ has what is evaluated
        policy/            the policy as it was exported at the end
        videos/, plots/, examples/, tensorboard/
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from embodyflow.config import RunConfig
from embodyflow.config.upgrade import upgrade
from embodyflow.errors import ConfigError, DamageError, DiskFullError
from embodyflow.process.durable_files import flush, make_folder, whole_lines, write_atomically, write_durably
from embodyflow.process.file_lock import hold_lock


class RunFolder:
    """Reads and writes one run's folder.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics_path = path / "metrics.jsonl"
        self.summary_path = path / "summary.json"
        self.ledger_path = path / "ledger.jsonl"
        self._checkpoints = path / "checkpoints"
        self._stages = path / "stages"
        self._episodes = path / "episodes"

    @classmethod
    def create(cls, config: RunConfig, notes: Mapping[str, str] | None = None) -> "RunFolder":
        """Make the folder of a new run: whole, or not at all where this process is killed meanwhile.

        Args:
            config: of the run.
            notes: texts of files in it, by name.

        Raises:
            ConfigError: a run of that name exists, or the folder cannot be made.
        """
        path = config.run_dir
        aside = _beside(path)
        settings = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
        try:
            make_folder(path.parent)
            _clear(aside)
            aside.mkdir()
            for name, text in {"config.yaml": settings, **(notes or {})}.items():
                write_durably(aside / name, text)
            aside.replace(path)
            flush(path.parent)
        except OSError as error:
            shutil.rmtree(aside, ignore_errors=True)
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise ConfigError(
                    f"run_id={config.run_id}: {path} exists; choose another run_id or resume={config.run_id}"
                ) from None
            raise ConfigError(f"run_root={config.run_root}: {path} cannot be made: {error.strerror}") from error
        return cls(path)

    def remove(self) -> None:
        """Remove the run: whole, or not at all where this process is killed meanwhile."""
        aside = _beside(self.path)
        _clear(aside)
        self.path.replace(aside)
        flush(self.path.parent)
        shutil.rmtree(aside)

    @classmethod
    def open(cls, run_root: str, run_id: str) -> "RunFolder":
        """Open the folder of an earlier run, to resume it.

        Raises:
            ConfigError: there is no such run; the message names those that exist.
        """
        path = Path(run_root) / run_id
        if not (path / "config.yaml").is_file():
            known = sorted(p.parent.name for p in Path(run_root).glob("[!.]*/config.yaml"))
            shown = ", ".join(known[-5:]) or "none yet"
            raise ConfigError(f"resume={run_id}: there is no such run in {run_root}/; allowed are {shown}")
        return cls(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other process from working on the run; the lock goes with this process, however it ends.

        Raises:
            ConfigError: another one does, and the message names it; or the folder cannot be written to.
        """
        with hold_lock(
            self.path / ".lock",
            lambda pid: f"run_id={self.path.name}: process {pid} is at work on this run; wait for its end",
        ):
            yield

    def refuse_if_at_work(self) -> None:
        """Look whether the run could be locked, and make nothing.

        Raises:
            ConfigError: another process is at work on it; the message names it.
        """
        if (self.path / ".lock").exists():
            with self.locked():
                pass

    def config(self) -> dict[str, Any]:
        """Return the configuration the run was started with."""
        values: dict[str, Any] = upgrade(yaml.safe_load((self.path / "config.yaml").read_text()))
        return values

    def append_metrics(self, record: dict[str, Any]) -> None:
        """Append one line to ``metrics.jsonl`` and have it on disk before returning."""
        with self.metrics_path.open("a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
        flush(self.path)

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of ``metrics.jsonl``; one that was left half written does not count."""
        if not self.metrics_path.exists():
            return []
        return [json.loads(line) for line in whole_lines(self.metrics_path.read_bytes())]

    def drop_metrics_after(self, iteration: int) -> None:
        """Forget lines of iterations that were not committed: a resumed run makes them again."""
        kept = [json.dumps(record) + "\n" for record in self.metrics() if record["iteration"] <= iteration]
        write_durably(self.metrics_path, "".join(kept))

    def write_status(self, stage: str, iteration: int, iterations: int) -> None:
        """Say what the run is doing."""
        status = {"stage": stage, "iteration": iteration, "iterations": iterations}
        write_atomically(self.path / "status.json", json.dumps(status))

    def write_examples(self, iteration: int, examples: list[dict[str, Any]]) -> None:
        """Write what the policy did in an evaluation, a line each."""
        lines = "".join(json.dumps(row) + "\n" for row in examples)
        write_atomically(self.subfolder("examples") / f"iteration-{iteration:06d}.jsonl", lines)

    def write_processes(self, pids: dict[str, int]) -> None:
        """Say which process is what, for whoever wants to look into one or end it."""
        write_atomically(self.path / "processes.json", json.dumps(pids, indent=2))

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write ``summary.json``: the run is complete."""
        write_durably(self.summary_path, json.dumps(summary, indent=2) + "\n")

    def write_observations(self, observations: dict[str, Any]) -> None:
        """Note what the policy is shown of each task before its first decision."""
        write_durably(self.path / "observations.json", json.dumps(observations, indent=2) + "\n")

    def observations(self) -> dict[str, Any] | None:
        """Return what :meth:`write_observations` was told; ``None`` where it never was."""
        path = self.path / "observations.json"
        return json.loads(path.read_text()) if path.exists() else None

    def write_evaluation(self, result: dict[str, Any]) -> None:
        """Write ``evaluation.json``: the evaluation is complete."""
        write_durably(self.path / "evaluation.json", json.dumps(result, indent=2) + "\n")

    def subfolder(self, name: str) -> Path:
        """Return a folder inside, made when missing."""
        folder = self.path / name
        folder.mkdir(exist_ok=True)
        return folder

    def stage(self, iteration: int, node_id: str) -> Path:
        """Return the folder for the rows of a node."""
        return self._stage_folder(iteration) / node_id

    def _stage_folder(self, iteration: int) -> Path:
        return self._stages / f"iteration-{iteration:06d}"

    def drop_stages(self, iteration: int, keep: int) -> None:
        """Remove the rows of all nodes of the iteration: it is committed.

        What the iteration before left over for it stays as long as a checkpoint is kept from which it may have to be
        done again.

        Args:
            iteration: its index.
            keep: how many of the newest checkpoints are kept.
        """
        done = self._stage_folder(iteration)
        for path in done.glob("*/*"):
            if path.suffix != ".surplus":
                path.unlink()
        for folder in self._stages.glob("iteration-*"):
            if _index_of(folder) <= iteration - keep or (folder == done and not any(done.glob("*/*"))):
                shutil.rmtree(folder)

    def drop_stages_after(self, iteration: int) -> None:
        """Remove the rows of all iterations after this one: they were made with weights that are made again."""
        for folder in self._stages.glob("iteration-*"):
            if _index_of(folder) > iteration:
                shutil.rmtree(folder)

    def drop_journals_after(self, iteration: int) -> None:
        """Remove the rows of half a node of all iterations after this one: it may lead to other weights this time.

        What was left over for them stays: the iteration that leaves it writes it anew.
        """
        for folder in self._stages.glob("iteration-*/*"):
            if _index_of(folder.parent) > iteration and (journals := list(folder.glob("*.parts"))):
                for journal in journals:
                    journal.unlink()
                flush(folder)

    def new_episodes(self, iteration: int) -> Path:
        """Return an empty folder to write the iteration's episodes to; :meth:`commit_episodes` makes them count."""
        self.drop_new_episodes(iteration)
        aside = self._episodes / f".iteration-{iteration:06d}"
        aside.mkdir(parents=True)
        return aside

    def drop_new_episodes(self, iteration: int) -> None:
        """Remove what was written of the iteration's episodes and does not count yet.

        It loses its name first, in one step: a rank that still writes finds no folder, rather than one half removed.
        """
        aside = self._episodes / f".iteration-{iteration:06d}"
        if aside.exists():
            _drop(aside)

    def commit_episodes(self, iteration: int, keep: int) -> None:
        """Give the iteration's episodes, if any were written, their name; remove all but the newest ``keep``."""
        aside, final = self._episodes / f".iteration-{iteration:06d}", self._episodes / f"iteration-{iteration:06d}"
        if aside.exists():
            shutil.rmtree(final, ignore_errors=True)
            os.replace(aside, final)
        for old in list(self.episodes().values())[:-keep]:
            _drop(old)
        for left in self._episodes.glob(".dropped-*"):  # by a kill; those of later iterations may be on their way
            if _index_of(left) < iteration:
                shutil.rmtree(left)

    def episodes(self) -> dict[int, Path]:
        """Return the folders of iterations whose episodes are kept, oldest first."""
        folders = sorted(self._episodes.glob("iteration-*"))
        return {_index_of(folder): folder for folder in folders}

    def new_checkpoint(self, iteration: int) -> Path:
        """Return an empty folder to write a checkpoint to; :meth:`commit_checkpoint` makes it count.

        Raises:
            DiskFullError: the disk has no room for one as large as the last.
        """
        make_folder(self._checkpoints)
        aside = self._checkpoints / f".iteration-{iteration:06d}"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        self.require_room()
        return aside

    def require_room(self, freed: int = 0) -> None:
        """Raise unless another checkpoint fits beside those that are there.

        Args:
            freed: bytes that will be free by then.

        Raises:
            DiskFullError: the disk has no room for one as large as the last.
        """
        if done := self.committed():
            needed = _size(self.checkpoint(done[-1]))
            free = shutil.disk_usage(self.path).free + freed
            if free < needed:
                raise DiskFullError(
                    f"{self._checkpoints}: a checkpoint takes {needed / 1e6:.0f} MB and {free / 1e6:.0f} MB are free; "
                    f"make room and resume={self.path.name}, or lower trainer.keep_checkpoints"
                )

    def half_written(self, iteration: int) -> int:
        """Return the bytes of a checkpoint that was begun and never counted; :meth:`new_checkpoint` removes it."""
        return _size(self._checkpoints / f".iteration-{iteration:06d}")

    def commit_checkpoint(self, iteration: int, facts: dict[str, Any], keep: int) -> None:
        """Give the checkpoint its name, in one step, and remove all but the first and the newest ``keep``.

        It is on the disk when it has its name: files first, then the name.
        """
        aside, final = self._checkpoints / f".iteration-{iteration:06d}", self.checkpoint(iteration)
        digests = {}
        for file in _files(aside):
            digests[str(file.relative_to(aside))] = _flush_and_digest(file)
        write_atomically(aside / "commit.json", json.dumps(facts | {"files": digests}, indent=2))
        for folder in (*filter(Path.is_dir, aside.rglob("*")), aside):
            flush(folder)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(aside, final)
        flush(self._checkpoints)
        # Iteration 0 is the reference policy: a resumed run needs it.
        for old in self.committed()[1:-keep]:
            _drop(self.checkpoint(old))
        for left in self._checkpoints.glob(".dropped-*"):  # by a kill
            shutil.rmtree(left)

    def verify_checkpoint(self, iteration: int) -> None:
        """Compare the checkpoint's files with what was written.

        Raises:
            DamageError: one is missing or other than it was; the message names it.
        """
        folder = self.checkpoint(iteration)
        try:
            digests = self.commit_facts(iteration)["files"]
        except (FileNotFoundError, ValueError, KeyError) as error:  # another error says nothing of what is there
            raise DamageError(f"{folder / 'commit.json'} is not what was written") from error
        for name, digest in digests.items():
            if not (folder / name).is_file() or _digest(folder / name) != digest:
                raise DamageError(f"{folder / name} is not what was written")

    def drop_checkpoint(self, iteration: int) -> None:
        """Remove a checkpoint: its iteration has to be done again."""
        _drop(self.checkpoint(iteration))

    def checkpoint(self, iteration: int) -> Path:
        """Return the folder of the iteration's committed checkpoint."""
        return self._checkpoints / f"iteration-{iteration:06d}"

    def committed(self) -> list[int]:
        """Return the iterations with a committed checkpoint, in order."""
        return sorted(map(_index_of, self._checkpoints.glob("iteration-*")))

    def commit_facts(self, iteration: int) -> dict[str, Any]:
        """Return what :meth:`commit_checkpoint` was told."""
        facts: dict[str, Any] = json.loads((self.checkpoint(iteration) / "commit.json").read_text())
        return facts


def _beside(path: Path) -> Path:
    """Return where a run's folder is made or removed; no run has such a name."""
    return path.with_name(f".{path.name}.{os.getpid()}")


def _clear(aside: Path) -> None:
    """Remove what a process that had this one's number, and was killed, has left beside a run."""
    if aside.exists():
        shutil.rmtree(aside)


def _drop(folder: Path) -> None:
    """Remove an iteration's folder; it loses its name before its files: whoever reads it finds it whole, or gone."""
    dropped = folder.with_name(f".dropped-{_index_of(folder):06d}")
    shutil.rmtree(dropped, ignore_errors=True)
    os.replace(folder, dropped)
    shutil.rmtree(dropped)


def unfinished_runs(run_root: Path) -> list[RunFolder]:
    """Return the runs that can go on, newest last.

    They have committed something, are not complete, nobody works on them, and this user may.
    """
    found = []
    for path in sorted(run_root.glob("[!.]*/ledger.jsonl"), key=lambda path: path.stat().st_mtime):
        folder = RunFolder(path.parent)
        if folder.summary_path.exists() or not folder.committed():
            continue
        try:
            with folder.locked():
                found.append(folder)
        except ConfigError:
            continue
    return found


def _index_of(folder: Path) -> int:
    """Return the iteration whose folder it is."""
    return int(folder.name.rpartition("-")[2])


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in _files(folder))


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush_and_digest(path: Path) -> str:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()
