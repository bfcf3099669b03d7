"""Segments: files without a name that processes of one machine map into their memory.

A segment is opened with ``O_TMPFILE``, in a tmpfs for shared memory or on disk for what is spilled, and reached by
others through ``/proc/<pid>/fd``. It lives as long as the buffer that made it, or a process that maps it; whoever is
killed, nothing is left over. Whoever reads holds a shared ``flock``, which ends with its mapping: what a reader still
sees is never given to a writer.
"""

import errno
import fcntl
import mmap
import os
import stat
import threading
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

from embodyflow.data.row_plan import Location
from embodyflow.data.table_packing import KEY_BYTES
from embodyflow.errors import BufferFullError, ConfigError

_MAPPED_SEGMENTS = 64  # that a writer keeps mapped; in a mapped page it writes ten times as fast as in a new one

_NOT_THERE = (
    *(errno.ENOENT, errno.ESRCH),  # the descriptor was closed, or the process has ended
    errno.ENXIO,  # it is a socket by now
    *(errno.EACCES, errno.EPERM),  # the process is another user's by now
)


class Segment:
    """One segment, as the buffer that owns it sees it.

    Args:
        folder: of the file system it takes its space from.
        capacity: in bytes.

    Raises:
        ConfigError: the folder is missing, or its file system has no files without a name.
    """

    def __init__(self, folder: str, capacity: int) -> None:
        try:
            self.descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(
                f"cluster.buffer: {folder}: {error.strerror}; allowed are folders on tmpfs, ext4, xfs or btrfs"
            ) from error
        self.capacity = capacity
        os.ftruncate(self.descriptor, capacity)

    def location(self, key: int) -> Location:
        """Return where other processes find the content of that key."""
        return Location(os.getpid(), self.descriptor, key)

    def clear(self) -> None:
        """Give the content up: who looks for it from now on finds it gone, who maps it already keeps it."""
        os.pwrite(self.descriptor, bytes(KEY_BYTES), 0)

    def is_read(self) -> bool:
        """Return whether a process maps the content."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        return False

    def copy_to(self, folder: str, num_bytes: int) -> "Segment":
        """Return a segment in another folder with the same content."""
        copy = Segment(folder, num_bytes)
        done = 0
        while done < num_bytes:
            done += os.sendfile(copy.descriptor, self.descriptor, done, num_bytes - done)
        return copy

    def let_go(self) -> None:
        """Give the space back as soon as nobody maps it."""
        os.close(self.descriptor)

    def close(self) -> None:
        """Give the space back, also where a writer still maps it; a reader must not, who would die of a bus error."""
        os.ftruncate(self.descriptor, 0)
        os.close(self.descriptor)


def map_content(location: Location) -> Any:
    """Map a segment's content privately; return the mmap, or ``None`` where the content is no longer there.

    The mapping is copy-on-write: it may be written to, and nobody else sees it.
    """
    # Non-blocking: a descriptor put to another use may be a pipe by now.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(f"/proc/{location.pid}/fd/{location.descriptor}", flags)
    except OSError as error:
        if error.errno in _NOT_THERE:
            return None
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if os.pread(descriptor, KEY_BYTES, 0) != location.key.to_bytes(KEY_BYTES, "little"):
            return None
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)  # keeps a duplicate, and with it the lock
    finally:
        os.close(descriptor)


class WritableSegments:
    """The segments a writer was given, kept mapped for the next time."""

    def __init__(self) -> None:
        self._mapped: OrderedDict[int, Any] = OrderedDict()  # by inode number, least recently used first
        self._buffer: bytes | None = None
        self._lock = threading.Lock()  # nodes that run side by side write at the same time

    def belong_to(self, buffer: bytes) -> None:
        """Let go of all segments but those of the buffer at this address: its predecessor's take room from it."""
        with self._lock:
            if buffer != self._buffer:
                self._mapped.clear()
                self._buffer = buffer

    def map(self, location: Location) -> Any:
        """Return a shared mmap of the segment, its space reserved.

        Raises:
            BufferFullError: the file system is full.
        """
        with self._lock:
            return self._map(location)

    def _map(self, location: Location) -> Any:
        descriptor = os.open(f"/proc/{location.pid}/fd/{location.descriptor}", os.O_RDWR | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if status.st_ino not in self._mapped:
                _reserve(descriptor, status)
                self._mapped[status.st_ino] = mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        finally:
            os.close(descriptor)
        self._mapped.move_to_end(status.st_ino)
        if len(self._mapped) > _MAPPED_SEGMENTS:
            self._mapped.popitem(last=False)
        return self._mapped[status.st_ino]


def _reserve(descriptor: int, status: os.stat_result) -> None:
    """Take the pages now: where there are none left, that is an error here and a bus error on writing."""
    if status.st_blocks * 512 >= status.st_size:
        return
    try:
        os.posix_fallocate(descriptor, 0, status.st_size)
    except OSError as error:
        raise BufferFullError(
            f"cluster.buffer.folder: no room for {status.st_size} bytes: {error.strerror}; "
            "lower cluster.buffer.memory_gb or give it another folder"
        ) from error


def free_bytes(folder: str) -> int:
    """Return the free space of a folder's file system.

    Raises:
        ConfigError: there is no such folder.
    """
    with suppress(FileNotFoundError):
        status = os.statvfs(Path(folder))
        return status.f_bavail * status.f_frsize
    raise ConfigError(f"cluster.buffer: {folder}: no such folder")
