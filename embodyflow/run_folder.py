"""The folder of a run: what is left of it on disk.

::

    runs/<run_id>/
        config.yaml       the resolved configuration
        metrics.jsonl     one line per iteration (0 is before the first)
        status.json       stage and iteration, for whoever watches
        summary.json      written at the end
        checkpoints/iteration-000005/   complete as soon as it has that name
        videos/, plots/, examples/, tensorboard/
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import yaml

from embodyflow.config import RunConfig
from embodyflow.errors import ConfigError


class RunFolder:
    """Reads and writes one run's folder.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics_path = path / "metrics.jsonl"
        self.summary_path = path / "summary.json"
        self._checkpoints = path / "checkpoints"

    @classmethod
    def create(cls, config: RunConfig) -> "RunFolder":
        """Make the folder of a new run.

        Raises:
            ConfigError: a run of that name exists.
        """
        path = config.run_dir
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise ConfigError(
                f"run_id={config.run_id}: {path} exists; choose another run_id or resume={config.run_id}"
            ) from None
        except OSError as error:
            raise ConfigError(f"run_root={config.run_root}: {path} cannot be made: {error.strerror}") from error
        folder = cls(path)
        _write_atomically(path / "config.yaml", yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
        return folder

    @classmethod
    def open(cls, run_root: str, run_id: str) -> "RunFolder":
        """Open the folder of an earlier run, to resume it.

        Raises:
            ConfigError: there is no such run; the message names those that exist.
        """
        path = Path(run_root) / run_id
        if not (path / "config.yaml").is_file():
            known = sorted(p.parent.name for p in Path(run_root).glob("*/config.yaml"))
            shown = ", ".join(known[-5:]) or "none yet"
            raise ConfigError(f"resume={run_id}: there is no such run in {run_root}/; allowed are {shown}")
        return cls(path)

    def config(self) -> dict[str, Any]:
        """Return the configuration the run was started with."""
        values: dict[str, Any] = yaml.safe_load((self.path / "config.yaml").read_text())
        return values

    def append_metrics(self, record: dict[str, Any]) -> None:
        """Append one line to ``metrics.jsonl`` and have it on disk before returning."""
        with self.metrics_path.open("a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of ``metrics.jsonl``; one that a killed process left half written does not count."""
        if not self.metrics_path.exists():
            return []
        lines = self.metrics_path.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def drop_metrics_after(self, iteration: int) -> None:
        """Forget lines of iterations that were not committed: a resumed run makes them again."""
        kept = [json.dumps(record) + "\n" for record in self.metrics() if record["iteration"] <= iteration]
        _write_atomically(self.metrics_path, "".join(kept))

    def write_status(self, stage: str, iteration: int, iterations: int) -> None:
        """Say what the run is doing."""
        status = {"stage": stage, "iteration": iteration, "iterations": iterations}
        _write_atomically(self.path / "status.json", json.dumps(status))

    def write_examples(self, iteration: int, examples: list[dict[str, Any]]) -> None:
        """Write what the policy did in an evaluation, a line each."""
        lines = "".join(json.dumps(row) + "\n" for row in examples)
        _write_atomically(self.subfolder("examples") / f"iteration-{iteration:06d}.jsonl", lines)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write ``summary.json``: the run is complete."""
        _write_atomically(self.summary_path, json.dumps(summary, indent=2) + "\n")

    def subfolder(self, name: str) -> Path:
        """Return a folder inside, made when missing."""
        folder = self.path / name
        folder.mkdir(exist_ok=True)
        return folder

    def new_checkpoint(self, iteration: int) -> Path:
        """Return an empty folder to write a checkpoint to; :meth:`commit_checkpoint` makes it count."""
        aside = self._checkpoints / f".iteration-{iteration:06d}"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        return aside

    def commit_checkpoint(self, iteration: int, facts: dict[str, Any], keep: int) -> None:
        """Give the checkpoint its name, in one step, and remove all but the first and the newest ``keep``."""
        aside, final = self._checkpoints / f".iteration-{iteration:06d}", self.checkpoint(iteration)
        _write_atomically(aside / "commit.json", json.dumps(facts, indent=2))
        shutil.rmtree(final, ignore_errors=True)
        os.replace(aside, final)
        # Iteration 0 is the reference policy: a resumed run needs it.
        for old in self.committed()[1:-keep]:
            shutil.rmtree(self.checkpoint(old))

    def checkpoint(self, iteration: int) -> Path:
        """Return the folder of the iteration's committed checkpoint."""
        return self._checkpoints / f"iteration-{iteration:06d}"

    def committed(self) -> list[int]:
        """Return the iterations with a committed checkpoint, in order."""
        return sorted(int(path.name.rpartition("-")[2]) for path in self._checkpoints.glob("iteration-*"))

    def commit_facts(self, iteration: int) -> dict[str, Any]:
        """Return what :meth:`commit_checkpoint` was told."""
        facts: dict[str, Any] = json.loads((self.checkpoint(iteration) / "commit.json").read_text())
        return facts


def _write_atomically(path: Path, text: str) -> None:
    """Write beside, flush to disk, rename: a reader sees the old file or the new one."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with aside.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
