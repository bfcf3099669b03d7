"""Processes of programs: their command, environment, output and end."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from embodyflow.process import guardian
from embodyflow.process.variables import variables_for_episodes

MAX_OUTPUT_BYTES = 2**16
"""Number of last bytes of stdout and of stderr that are kept."""


@dataclass(frozen=True)
class Ended:
    """End of a program.

    Attributes:
        code: Exit code.
        output: End of its stdout.
        errors: End of its stderr.
    """

    code: int
    output: str
    errors: str

    @property
    def reason(self) -> str:
        """Exit code and last line of stderr, for messages."""
        last = self.errors.strip().rpartition("\n")[2]
        return f"exit code {self.code}" + (f": {last}" if last else "")


def search_path() -> str:
    """Return the path on which commands are found: first the folder of this Python, so ``python`` means this one."""
    return os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))


def environment(base_url: str, api_key: str) -> dict[str, str]:
    """Return the environment of a program: that of an episode, with the server's address and the episode's key."""
    exempt = [name for name in (os.environ.get("NO_PROXY"), "127.0.0.1") if name]
    return {
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",  # the order of a set is part of a prompt that is made of it
        **variables_for_episodes(),
        "PATH": search_path(),
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_KEY": api_key,
        "NO_PROXY": ",".join(exempt),
        "no_proxy": ",".join(exempt),
    }


@contextlib.asynccontextmanager
async def running(command: Sequence[str], env: Mapping[str, str], row: bytes) -> AsyncIterator["asyncio.Task[Ended]"]:
    """Run a program within the block, at whose end it and its descendants are killed.

    They also end with this process, however that ends.

    Args:
        command: Command of the program.
        env: Whole environment.
        row: Bytes for its stdin.

    Yields:
        A task that waits for the program's end.
    """
    theirs, ours = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", guardian.__file__, str(theirs), *command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(env),
            pass_fds=[theirs],
            start_new_session=True,
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    ended = asyncio.create_task(_follow(process, row))
    try:
        yield ended
    finally:
        os.close(ours)
        await asyncio.wait([ended])


async def _follow(process: asyncio.subprocess.Process, row: bytes) -> Ended:
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    _, output, errors, code = await asyncio.gather(
        _write(process.stdin, row), _tail(process.stdout), _tail(process.stderr), process.wait()
    )
    return Ended(code, output, errors)


async def _write(stream: asyncio.StreamWriter, content: bytes) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the program does not read its stdin
        stream.write(content)
        await stream.drain()
        stream.close()
        await stream.wait_closed()


async def _tail(stream: asyncio.StreamReader) -> str:
    content = b""
    while part := await stream.read(MAX_OUTPUT_BYTES):
        content = (content + part)[-MAX_OUTPUT_BYTES:]
    return content.decode(errors="replace")
