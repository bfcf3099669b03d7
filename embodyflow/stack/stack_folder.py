"""The files that a stack keeps in the folder of its project."""

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import yaml

from embodyflow.errors import ConfigError
from embodyflow.orchestration.server.credentials import TOML_MARK
from embodyflow.orchestration.watchers.orphans import Leftover
from embodyflow.process.files.durable_files import write_atomically
from embodyflow.process.files.file_lock import hold_lock, holder
from embodyflow.process.files.private_files import write_private
from embodyflow.project import PREFECT_YAML, is_project
from embodyflow.stack.processes import find_process


@dataclass(frozen=True)
class StackState:
    """The description of a stack in ``.embodyflow/stack.json``, by which other processes find it.

    Attributes:
        pid: Process id of the launcher, on which all other processes depend.
        created: Creation time of the launcher, seconds since the epoch; the system may reuse its pid.
        ready: True once runs can be submitted.
        api_url: Address of the Prefect server's API.
        ray_address: Address of the Ray cluster, ``host:port``.
        ray_temp_dir: Private folder of Ray's sockets and logs, removed with the stack; None for the user's cluster.
        processes: Name to pid of the processes that the launcher started; complete once the stack is ready.
        command: ``up`` for a stack that all runs share, ``run`` for one that ends with its run.
        owns_server: True if the Prefect server is the stack's, which asks for the stack's password.
    """

    pid: int
    created: float
    ready: bool
    api_url: str
    ray_address: str
    ray_temp_dir: str | None
    processes: dict[str, int]
    command: str = "up"
    owns_server: bool = True

    @property
    def alive(self) -> bool:
        """True while the launcher runs."""
        return find_process(self.pid, self.created) is not None


class DamagedStateError(ConfigError):
    """The description of a stack cannot be read, or another version of embodyflow wrote it."""


@dataclass(frozen=True)
class StackFolder:
    """The files of a project's stack.

    Args:
        root: Folder of the project, the one with ``deployments/prefect.yaml``.
    """

    root: Path

    @classmethod
    def here(cls) -> "StackFolder":
        """Return the files of the current directory's project.

        Raises:
            ConfigError: The current directory is not a project.
        """
        root = Path.cwd().resolve()
        if not is_project(root):
            raise ConfigError(
                f"{root}: has no {PREFECT_YAML}; run this in a project's folder, or make one with "
                "`embodyflow init <folder>`"
            )
        return cls(root)

    @property
    def prefect_yaml(self) -> Path:
        """File with the deployments."""
        return self.root / PREFECT_YAML

    def deployment(self, flow: str, experiment: str) -> str:
        """Return the deployment ``<flow>/<name>`` that runs an experiment: its own, or else the first of the flow.

        Raises:
            ConfigError: The flow has no deployment, and the message names the flows that do; or ``prefect.yaml`` is
                wrong.
        """
        names: dict[str, list[str]] = {}
        try:
            for each in yaml.safe_load(self.prefect_yaml.read_text(encoding="utf-8"))["deployments"]:
                names.setdefault(each["entrypoint"].rpartition(":")[2], []).append(each["name"])
        except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError) as error:
            reason = " ".join(str(error).split())
            raise ConfigError(
                f"{self.prefect_yaml}: must list deployments, each with name and entrypoint: {reason}"
            ) from error
        if flow not in names:
            raise ConfigError(f"flow={flow}: has no deployment; allowed are {', '.join(names)}")
        return f"{flow}/{experiment if experiment in names[flow] else names[flow][0]}"

    @property
    def private(self) -> Path:
        """Folder for everything that outlives the stack: database, cached results, logs."""
        return self.root / ".embodyflow"

    @property
    def prefect_home(self) -> Path:
        """Home of Prefect, separate from the user's own."""
        return self.private / "prefect"

    @property
    def ray_token(self) -> Path:
        """File with the secret that every client of our Ray cluster needs."""
        return self.private / "ray_token"

    @property
    def prefect_auth(self) -> Path:
        """File with the password that every client of our Prefect server needs."""
        return self.private / "prefect_auth"

    def auth_string(self) -> str:
        """Return ``user:password`` of our Prefect server.

        Raises:
            ConfigError: The file is gone.
        """
        try:
            return self.prefect_auth.read_text()
        except FileNotFoundError as error:
            raise ConfigError(f"{self.prefect_auth}: is gone; `embodyflow down` and `embodyflow up` make it") from error

    def log(self, name: str) -> Path:
        """Return the log file of one process of the stack."""
        return self.private / "logs" / f"{name}.log"

    def prepare(self) -> None:
        """Create the folder :attr:`private`, and let no other user enter it, whatever the umask is.

        It has more than passwords: the Prefect database with the parameters and logs of all runs, results that Prefect
        unpickles, and the addresses that our commands send the password to.

        Raises:
            ConfigError: This user may not write there, for example because the project is another user's.
        """
        try:
            self.private.mkdir(mode=0o700, exist_ok=True)
            if not os.access(self.private, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            if (mode := self.private.stat().st_mode) & 0o077:  # an earlier version made it
                self.private.chmod(mode & 0o700)
        except OSError as error:
            raise ConfigError(
                f"{self.private}: {error.strerror}; allowed is a project that you can write to; "
                "`embodyflow init <folder>` creates one"
            ) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other stack from starting here; the lock is released when this process ends, even if killed.

        Raises:
            ConfigError: Another process holds the lock; the message names it.
        """
        self.prepare()
        with hold_lock(
            self._lock_path,
            lambda pid: f"{self.root}: a stack is up (process {pid}); `embodyflow down` stops it",
        ):
            yield

    def read_state(self) -> StackState | None:
        """Return the stack that was last started here, alive or not; None if it was stopped properly.

        Raises:
            DamagedStateError: The file cannot be read, or another version of embodyflow wrote it.
            ConfigError: The stack is another user's.
        """
        try:
            return StackState(**json.loads(self._state_path.read_text()))
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise ConfigError(f"{self.private}: is another user's, and only they can use its stack") from error
        except (ValueError, TypeError) as error:
            raise DamagedStateError(
                f"{self._state_path}: is damaged, or another version of embodyflow wrote it; `embodyflow down` ends "
                "the stack and removes the file"
            ) from error

    def launcher(self) -> psutil.Process | None:
        """Return the process that runs a stack here; None if no stack is up.

        If the file that names it is damaged, it is the process that holds the lock.

        Raises:
            ConfigError: The stack is another user's.
        """
        try:
            state = self.read_state()
        except DamagedStateError:
            pid = holder(self._lock_path)
            return psutil.Process(pid) if pid else None
        return None if state is None else find_process(state.pid, state.created)

    def has_state(self) -> bool:
        """Return True unless the last stack was stopped properly."""
        return self._state_path.exists()

    def state_time(self) -> float:
        """Return when the state was written, in seconds since the epoch."""
        return self._state_path.stat().st_mtime

    def write_state(self, state: StackState) -> None:
        """Write the state by which others find the stack, atomically."""
        self.prepare()
        write_atomically(self._state_path, json.dumps(asdict(state), indent=2))

    def remove_state(self) -> None:
        """Remove the state: no stack runs here."""
        self._state_path.unlink(missing_ok=True)

    def check_prefect_toml(self) -> None:
        """Check that :meth:`write_prefect_toml` may write.

        Raises:
            ConfigError: The folder has a ``prefect.toml`` of the user's own.
        """
        path = self.root / "prefect.toml"
        if path.exists() and not path.read_bytes().startswith(TOML_MARK.encode()):
            raise ConfigError(f"{path}: is in the way; move it, or set PREFECT_API_URL to use your own server")

    def write_prefect_toml(self, api_url: str, auth_string: str) -> None:
        """Point every ``prefect`` command in this folder at the stack, with its password. Only the user can read it.

        Raises:
            ConfigError: The folder has a ``prefect.toml`` of the user's own.
        """
        self.check_prefect_toml()
        lines = [f"{name} = {json.dumps(value)}\n" for name, value in (("url", api_url), ("auth_string", auth_string))]
        write_private(self.root / "prefect.toml", f"{TOML_MARK}[api]\n{''.join(lines)}")

    def remove_prefect_toml(self) -> None:
        """Undo :meth:`write_prefect_toml`."""
        self.prefect_toml.remove()

    @property
    def prefect_toml(self) -> Leftover:
        """The file that :meth:`write_prefect_toml` writes."""
        return Leftover(self.root / "prefect.toml", TOML_MARK)

    @property
    def _lock_path(self) -> Path:
        return self.private / "stack.lock"

    @property
    def _state_path(self) -> Path:
        return self.private / "stack.json"


def live_stack(folder: StackFolder) -> StackState | None:
    """Return the stack that runs in ``folder``, or None."""
    state = folder.read_state()
    return state if state is not None and state.alive else None
