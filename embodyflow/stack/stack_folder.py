"""What a stack keeps in the project folder."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from embodyflow.errors import ConfigError
from embodyflow.process.file_lock import hold_lock
from embodyflow.stack.processes import find_process

_TOML_MARK = "# Written by `embodyflow up`; removed by `embodyflow down`.\n"


@dataclass(frozen=True)
class StackState:
    """A stack, as others find it in ``.embodyflow/stack.json``.

    Attributes:
        pid: the launcher, which everything else depends on.
        created: when that process was created, seconds since the epoch: a pid alone may be another's by now.
        ready: whether runs can be submitted.
        api_url: the Prefect server's API.
        ray_address: the Ray cluster, ``host:port``.
        ray_temp_dir: Ray's folder for sockets, ours to remove; None when the cluster is not ours.
        processes: names and pids of what the launcher started; complete once it is ready.
        command: ``up``, whose stack is for everybody, or ``run``, whose own it is: it ends with the run.
    """

    pid: int
    created: float
    ready: bool
    api_url: str
    ray_address: str
    ray_temp_dir: str | None
    processes: dict[str, int]
    command: str = "up"

    @property
    def alive(self) -> bool:
        """Whether the launcher lives."""
        return find_process(self.pid, self.created) is not None


@dataclass(frozen=True)
class StackFolder:
    """The files of the stack of one project.

    Args:
        root: the project's folder, the one with ``deployments/prefect.yaml``.
    """

    root: Path

    @classmethod
    def here(cls) -> "StackFolder":
        """Return that of the current directory.

        Raises:
            ConfigError: it is no project's folder.
        """
        folder = cls(Path.cwd().resolve())
        if not folder.prefect_yaml.is_file():
            raise ConfigError(f"{folder.root}: has no deployments/prefect.yaml; run this in the project's folder")
        return folder

    @property
    def prefect_yaml(self) -> Path:
        """The deployments."""
        return self.root / "deployments" / "prefect.yaml"

    def deployment(self, flow: str, experiment: str) -> str:
        """Return ``<flow>/<name>`` of the deployment to run an experiment by: its own, or else the flow's first.

        Raises:
            ConfigError: the flow has none; the message names those that have.
        """
        names: dict[str, list[str]] = {}
        for each in yaml.safe_load(self.prefect_yaml.read_text())["deployments"]:
            names.setdefault(each["entrypoint"].rpartition(":")[2].replace("_", "-"), []).append(each["name"])
        if flow not in names:
            raise ConfigError(f"flow={flow}: has no deployment; allowed are {', '.join(names)}")
        return f"{flow}/{experiment if experiment in names[flow] else names[flow][0]}"

    @property
    def private(self) -> Path:
        """Everything of the stack that should outlive it: database, cached results, logs."""
        return self.root / ".embodyflow"

    @property
    def prefect_home(self) -> Path:
        """Prefect's home, so that the user's own is left alone."""
        return self.private / "prefect"

    @property
    def ray_token(self) -> Path:
        """The secret without which nobody may talk to our Ray cluster."""
        return self.private / "ray_token"

    def log(self, name: str) -> Path:
        """Return the log file of one process of the stack."""
        return self.private / "logs" / f"{name}.log"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other stack from starting here; the lock goes with this process, however it ends.

        Raises:
            ConfigError: another process has it; the message names it.
        """
        self.private.mkdir(exist_ok=True)
        with hold_lock(
            self.private / "stack.lock",
            lambda pid: f"{self.root}: a stack is up (process {pid}); `embodyflow down` stops it",
        ):
            yield

    def read_state(self) -> StackState | None:
        """Return the stack last started here, alive or not; None if it was stopped properly."""
        try:
            return StackState(**json.loads(self._state_path.read_text()))
        except FileNotFoundError:
            return None

    def write_state(self, state: StackState) -> None:
        """Let others find the stack; a reader sees the old state or the new one."""
        self.private.mkdir(exist_ok=True)
        aside = self._state_path.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps(asdict(state), indent=2))
        aside.replace(self._state_path)

    def remove_state(self) -> None:
        """Say that nothing runs here."""
        self._state_path.unlink(missing_ok=True)

    def check_prefect_toml(self) -> None:
        """Look whether :meth:`write_prefect_toml` can be.

        Raises:
            ConfigError: a ``prefect.toml`` that we have not written is there.
        """
        path = self.root / "prefect.toml"
        if path.exists() and not path.read_text().startswith(_TOML_MARK):
            raise ConfigError(f"{path}: is in the way; move it, or set PREFECT_API_URL to use your own server")

    def write_prefect_toml(self, api_url: str) -> None:
        """Make every ``prefect`` command in this folder talk to the stack.

        Raises:
            ConfigError: a ``prefect.toml`` that we have not written is there.
        """
        self.check_prefect_toml()
        path = self.root / "prefect.toml"
        path.write_text(f'{_TOML_MARK}[api]\nurl = "{api_url}"\n')

    def remove_prefect_toml(self) -> None:
        """Undo :meth:`write_prefect_toml`."""
        path = self.root / "prefect.toml"
        if path.exists() and path.read_text().startswith(_TOML_MARK):
            path.unlink()

    @property
    def _state_path(self) -> Path:
        return self.private / "stack.json"


def live_stack(folder: StackFolder) -> StackState | None:
    """Return the stack that runs in ``folder``; None if there is none."""
    state = folder.read_state()
    return state if state is not None and state.alive else None
