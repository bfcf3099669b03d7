"""Commands in a folder as in a container: with mounts and processes of their own, which end with the command."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("unshare", "mount", "chroot", "setpriv", "ip")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LEFT = 97
"""Exit status of a command that left a process."""


@dataclass(frozen=True)
class Bind:
    """A file or folder of this machine that a command sees.

    Args:
        source: Path on this machine.
        target: Absolute path in the folder of the container.
        writable: False makes it read-only.
    """

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True)
class Container:
    """A folder as the root of commands.

    Args:
        root: The folder.
        env: The only environment variables of commands.
        workdir: Absolute path in which commands start.
        user: ``uid:gid`` of commands. Anyone but root has no capabilities and cannot gain any.
        binds: What commands see of this machine besides /sys and the network.
        shm: Size of /dev/shm, as the option ``size`` of tmpfs says it.
        network: True is this machine's network; False is a loopback interface alone.
    """

    root: Path
    env: Mapping[str, str]
    workdir: str = "/"
    user: str = "0:0"
    binds: tuple[Bind, ...] = ()
    shm: str = "64m"
    network: bool = True

    def run(self, command: Sequence[str], log: Path) -> int:
        """Run a command and end what it leaves; return its exit status, and 97 if it left a process.

        Mounts and processes of the command are in namespaces of their own. Both are gone when this returns or raises.

        Args:
            command: Program and arguments.
            log: File that its output is appended to.
        """
        made = [path for bind in self.binds for path in _make_target(self.root, bind)]
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
        namespaces += [] if self.network else ["--net"]
        try:
            with log.open("ab") as file:
                script = [*namespaces, "sh", "-uc", self._script(), "sh", *self._entered(command)]
                return subprocess.run(script, stdin=subprocess.DEVNULL, stdout=file, stderr=file).returncode
        finally:
            for path in reversed(made):
                path.rmdir() if path.is_dir() else path.unlink()

    def _script(self) -> str:
        """Return the script of the first process: it mounts, runs its arguments and looks for what they leave."""
        root = shlex.quote(str(self.root))
        lines = [
            "set -e",
            f"cd {root}",
            *([] if self.network else ["ip link set lo up"]),
            "mount -t proc -o nosuid,nodev,noexec proc proc",
            "mount --rbind /sys sys && mount -o remount,bind,ro sys",
            "mount -t tmpfs -o mode=755,nosuid dev dev && mkdir dev/pts dev/shm",
            f"mount -t tmpfs -o mode=1777,nosuid,nodev,size={self.shm} shm dev/shm",
            "mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts dev/pts && ln -s pts/ptmx dev/ptmx",
            "ln -s /proc/self/fd dev/fd && ln -s fd/0 dev/stdin && ln -s fd/1 dev/stdout && ln -s fd/2 dev/stderr",
            *(f"touch dev/{name} && mount --bind /dev/{name} dev/{name}" for name in _DEVICES),
        ]
        for bind in self.binds:
            target = shlex.quote(bind.target.lstrip("/"))
            lines.append(f"mount --bind {shlex.quote(str(bind.source))} {target}")
            if not bind.writable:
                lines.append(f"mount -o remount,bind,ro {target}")
        return "\n".join([*lines, "set +e", _RUN_AND_LOOK])

    def _entered(self, command: Sequence[str]) -> list[str]:
        """Return the words that run a command in the folder, as its user and with its environment."""
        user, _, group = self.user.partition(":")
        variables = [f"{name}={value}" for name, value in self.env.items()]
        words = ["chroot", str(self.root), "env", "-i", "-C", self.workdir, *variables]
        if self.user != "0:0":
            words += ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--no-new-privs"]
            words += ["--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all"]
        return [*words, *command]


# The shell of this is process 1 of its namespace. It waits for orphans too, so what it sees has not ended.
_RUN_AND_LOOK = f"""
"$@"
status=$?
for try in $(seq 50); do
    left=""
    for folder in proc/[0-9]*; do
        case $folder in proc/1) continue ;; esac
        state=$(sed -n 's/^State:[[:space:]]*//p' $folder/status 2>/dev/null)
        case $state in ''|Z*) ;; *) left="$left $(tr '\\0' ' ' < $folder/cmdline);" ;; esac
    done
    [ -z "$left" ] && exit $status
    sleep 0.1
done
echo "left running:$left"
exit {_LEFT}
"""


def why_no_container() -> str:
    """Return why no command can have a folder as its root here; an empty string if it can."""
    if os.geteuid() != 0:
        return "needs root"
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        return f"needs {', '.join(missing)}"
    mounting = "mount -t tmpfs none /mnt && mount --bind / /mnt"
    probe = ["unshare", "--mount", "--pid", "--fork", "--propagation", "private", "sh", "-c", mounting]
    done = subprocess.run(probe, capture_output=True, text=True)
    return f"needs mounts: {done.stderr.strip()}" if done.returncode != 0 else ""


def processes_below(root: Path) -> list[int]:
    """Return the ids of the processes whose root is a folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(place / "root") == str(root):
                found.append(int(place.name))
        except OSError:
            continue  # it has ended
    return found


def mounts_below(root: Path) -> list[str]:
    """Return the mounts of this process below a folder."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if Path(point).is_relative_to(root)]


def package_access() -> tuple[dict[str, str], tuple[Bind, ...]]:
    """Return by which environment variables and files pip, uv and apt reach their packages on this machine.

    These are proxies, certificates, the names of hosts, and pip's indexes with the folders that they lie in.
    """
    env = {name: value for name, value in os.environ.items() if name.lower() in _NETWORK}
    listed = [sys.executable, "-m", "pip", "config", "list"]
    for line in subprocess.run(listed, capture_output=True, text=True, check=True).stdout.splitlines():
        key, _, value = line.partition("=")
        option = key.rpartition(".")[2]
        if option in _PIP_OPTIONS:
            words = shlex.split(value)[0].replace("\\n", " ").split()
            env[f"PIP_{option.replace('-', '_').upper()}"] = " ".join(words)
    paths = [Path(word.removeprefix("file://")) for value in env.values() for word in value.split()]
    # The pages of an index that is a folder refer to files beside it.
    folders = [path.parent if path.name == "simple" else path for path in paths if path.is_absolute()]
    files = dict.fromkeys([Path("/etc/resolv.conf"), Path("/etc/hosts"), *folders])
    return env, tuple(Bind(path.resolve(), str(path)) for path in files if path.exists())


_NETWORK = (
    *("http_proxy", "https_proxy", "no_proxy", "all_proxy"),
    *("ssl_cert_file", "requests_ca_bundle", "curl_ca_bundle"),
)
_PIP_OPTIONS = ("index-url", "extra-index-url", "find-links", "cert", "default-timeout", "trusted-host")


def _make_target(root: Path, bind: Bind) -> list[Path]:
    """Make the file or folder that a bind needs; return what was missing, outermost first."""
    target = root / bind.target.lstrip("/")
    if target.exists():
        return []
    missing = [path for path in reversed([target, *target.parents]) if not path.exists()]
    for path in missing[:-1]:
        path.mkdir()
    target.mkdir() if bind.source.is_dir() else target.touch()
    return missing
