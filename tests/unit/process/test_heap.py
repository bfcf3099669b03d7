"""A process keeps freed memory."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from embodyflow.process.heap import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
pieces = [bytearray(2**20) for _ in range(200)]
del pieces
with open("/proc/self/statm") as file:
    print(int(file.read().split()[1]) * 4096 / 2**20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
@pytest.mark.parametrize(("mode", "keeps"), [("keep", True), ("leave", False)])
def test_a_process_keeps_freed_memory(mode: str, keeps: bool) -> None:
    resident = float(subprocess.run([sys.executable, "-c", PROGRAM, mode], capture_output=True, check=True).stdout)
    assert (resident > 200) == keeps and (resident < 100) != keeps


FROZEN = """
import gc, weakref
from embodyflow.process.heap import freeze_objects
class Node: pass
old = Node()
old.self = old
watched = weakref.ref(old)
freeze_objects()
later = Node()
later.self = later
watched_later = weakref.ref(later)
del old, later
gc.collect()
print(watched() is not None, watched_later() is None)
"""


def test_collections_leave_out_what_lived_before() -> None:
    assert subprocess.run([sys.executable, "-c", FROZEN], capture_output=True, check=True).stdout == b"True True\n"
