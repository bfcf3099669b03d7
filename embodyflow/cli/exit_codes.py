"""The exit codes of commands, and one line for each mistake and fault that is not a bug."""

import errno
import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec
from urllib.error import URLError

import typer

from embodyflow.cli.plain_text import in_one_line
from embodyflow.errors import ConfigError, DamageError
from embodyflow.project import make_importable

Arguments = ParamSpec("Arguments")

OF_FILES = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE),
    *(errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG),
)
"""Numbers of errors of a file, a folder or a disk that the user can mend. A file that is missing may be our bug."""


def returns_code(command: Callable[Arguments, int]) -> Callable[Arguments, None]:
    """Make a command's return value the exit code, and print the mistakes of its user in one line."""

    @functools.wraps(command)
    def run(*arguments: Arguments.args, **options: Arguments.kwargs) -> None:
        # Each command imports what it needs when it runs, so --help is quick.
        from embodyflow.stack.diagnosis import StackError
        from embodyflow.stack.signals import exit_on_signals

        exit_on_signals()
        try:
            make_importable()  # the project's rooms and the user's own modules, as for `python -m flows.grpo`
            code = command(*arguments, **options)
            sys.stdout.flush()
        except ConfigError as error:
            print(error, file=sys.stderr)
            code = 2
        except (StackError, DamageError) as error:
            print(f"error: {error}", file=sys.stderr)
            code = 1
        except BrokenPipeError:  # the reader of our output, such as head, closed the pipe
            _drop_output()
            code = 1
        except (URLError, ConnectionError) as error:
            print(f"error: the Prefect server went away: {error}", file=sys.stderr)
            code = 1
        except OSError as error:  # a file or folder that cannot be read or written, or a full disk
            if error.errno not in OF_FILES:
                raise
            print(f"error: {_place_of(error)}: {error.strerror}", file=sys.stderr)
            code = 1
        raise typer.Exit(code)

    return run


def _place_of(error: OSError) -> str:
    """Return the file that an error names; a failed write to one that is open names none."""
    if isinstance(error.filename, str | bytes):
        return in_one_line(os.fsdecode(error.filename))
    try:
        sys.stdout.flush()
    except OSError:  # it still has what it could not write
        _drop_output()
    return "standard output or a file"


def _drop_output() -> None:
    """Let standard output take what is left and drop it, so that the flush at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
