"""A stand-in for the official image ``python:<version>-slim-bookworm``, from Debian's packages of this machine.

It has Debian's Python of that minor version where the official image has its own, in ``/usr/local/bin``, and the
packages of the official image that Debian's minimal system lacks. It has no pip outside of virtual environments.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

SOURCES = (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list"))
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
# Of Debian's images too: apt keeps neither packages nor what it computes of its lists.
_APT = """
APT::Keep-Downloaded-Packages "false";
Acquire::Languages "none";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
"""
_MINOR = "3.11"
"""The only minor version of bookworm."""


def why_no_base() -> str:
    """Return why the stand-in cannot be made here; an empty string if it can."""
    if shutil.which("mmdebstrap") is None:
        return "needs Debian's mmdebstrap"
    return "" if _sources() is not None else "needs apt's sources of Debian bookworm"


def make_debian_base(image: str, root: Path) -> dict[str, str]:
    """Fill a folder with the stand-in of an image; return the environment variables of its commands.

    Raises:
        ValueError: The image is another than Python's on bookworm.
        subprocess.CalledProcessError: Debian's packages are out of reach; the output has the reason.
    """
    if re.fullmatch(rf"python:{re.escape(_MINOR)}\.\d+-slim-bookworm", image) is None:
        raise ValueError(f"{image}: the stand-in is python:{_MINOR}.<patch>-slim-bookworm")
    packages = f"ca-certificates,netbase,tzdata,python{_MINOR}-venv"
    slim = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "info", "locale")]
    made = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={packages}", *slim, "bookworm", root, _sources()]
    subprocess.run(made, check=True)
    for name in ("python", "python3"):
        (root / "usr" / "local" / "bin" / name).symlink_to(f"/usr/bin/python{_MINOR}")
    for name in ("resolv.conf", "hostname", "hosts"):  # of this machine
        (root / "etc" / name).write_text("")
    (root / "etc" / "apt" / "apt.conf.d" / "docker-clean").write_text(_APT)
    os.chmod(root, 0o755)
    return dict(ENVIRONMENT)


def _sources() -> Path | None:
    return next((path for path in SOURCES if path.exists() and "bookworm" in path.read_text()), None)
