"""A machine whose memory is as short as a test says, for the processes that it starts. No memory is used up."""

import os
import re
import shutil
import subprocess
from pathlib import Path

LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
# A mount namespace in which one file lies over /proc/meminfo.
_ENTER = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /proc/meminfo && exec "$@"']


class MachineMemory:
    """A machine with as much memory as this one, of which as much is available as a test says.

    Args:
        folder: Folder for its ``meminfo``.
    """

    def __init__(self, folder: Path) -> None:
        self._meminfo = folder / "meminfo"
        self.set_available(0.9)

    @property
    def prefix(self) -> list[str]:
        """Beginning of a command that runs the rest, and what it starts, on this machine."""
        return [*_ENTER, str(self._meminfo)]

    def set_available(self, share: float) -> None:
        """Make this share of the memory available, from 0 to 1."""
        text, total = Path("/proc/meminfo").read_text(), total_kib()
        for name, value in {"MemTotal": total, "MemAvailable": int(share * total)}.items():
            text = re.sub(rf"^{name}:.*$", f"{name}: {value:15d} kB", text, flags=re.MULTILINE)
        self._meminfo.write_text(text)  # in place, because the mount shows this very file

    def why_not(self) -> str:
        """Return why no process can be run on this machine; an empty string if it can."""
        if os.getuid() != 0 or shutil.which("unshare") is None:
            return "needs root and unshare"
        done = subprocess.run([*self.prefix, "cat", "/proc/meminfo"], capture_output=True, text=True)
        return "" if done.stdout == self._meminfo.read_text() else "needs the right to mount"


def total_kib() -> int:
    """Return the memory of this machine, a little less than the limit of a container, which Ray would go by instead."""
    [total] = re.findall(r"^MemTotal: +(\d+) kB$", Path("/proc/meminfo").read_text(), flags=re.MULTILINE)
    limits = [Path(path).read_text().strip() for path in LIMITS if Path(path).is_file()]
    return min([int(total), *(int(0.99 * int(limit)) // 1024 for limit in limits if limit != "max")])
