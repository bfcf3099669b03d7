"""Modes of files that libraries create."""

from pathlib import Path


def follow_umask(place: Path) -> None:
    """Give a file, or the files in a folder, the modes that the umask grants; the mode of their folder shows it.

    safetensors creates its files with mode 0600 whatever the umask is, so that colleagues could read a policy's
    configuration but not its weights. The umask itself can only be read by changing it, which other threads would see.
    """
    for path in place.rglob("*") if place.is_dir() else (place,):
        if path.is_file() and not path.is_symlink():
            executable = path.stat().st_mode & 0o111
            path.chmod((path.parent.stat().st_mode & 0o666) | executable)
