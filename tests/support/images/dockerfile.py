"""A Dockerfile as instructions. What ``image_build`` cannot execute is an error here, so that it skips nothing."""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

INSTRUCTIONS = ("ARG", "CMD", "COPY", "ENV", "FROM", "RUN", "USER", "WORKDIR")
OPTIONS = {"COPY": {"from"}, "RUN": {"mount"}}


class DockerfileError(Exception):
    """A Dockerfile has something that is wrong or that is not executed here."""


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Args:
        line: Its first line in the file, from 1.
        name: Its name, in capitals.
        options: Name and value of each ``--name=value`` before its words.
        words: All that follows, with its continued lines joined.
    """

    line: int
    name: str
    options: tuple[tuple[str, str], ...]
    words: str

    def __str__(self) -> str:
        options = "".join(f"--{name}={value} " for name, value in self.options)
        return f"line {self.line}: {self.name} {options}{self.words}"


def parse(text: str) -> list[Instruction]:
    """Return the instructions of a Dockerfile.

    Raises:
        DockerfileError: An instruction, an option or a form of one is not executed here.
    """
    return [_instruction(line, words) for line, words in _joined_lines(text)]


def substitute(words: str, values: Mapping[str, str]) -> str:
    """Replace ``$NAME`` and ``${NAME}``.

    Raises:
        DockerfileError: A name has no value, or it is followed by a modifier such as ``:-``.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name is None or name not in values:
            raise DockerfileError(f"{words}: no value for {match[0]}")
        return values[name]

    return re.sub(r"\$(?:\{(\w+)\}|(\w+)|.?)", value, words)


def assignments(words: str) -> list[tuple[str, str]]:
    """Return name and value of each ``NAME=value``, without quotes.

    Raises:
        DockerfileError: A word is no assignment.
    """
    pairs = [word.partition("=") for word in shlex.split(words)]
    if not pairs or not all(name and equals for name, equals, _ in pairs):
        raise DockerfileError(f"{words}: NAME=value is needed")
    return [(name, value) for name, _, value in pairs]


def command(words: str) -> list[str]:
    """Return the words of a command in JSON, the form that starts no shell.

    Raises:
        DockerfileError: It is no list of strings.
    """
    try:
        found = json.loads(words)
    except json.JSONDecodeError:
        found = None
    if not isinstance(found, list) or not found or not all(isinstance(word, str) for word in found):
        raise DockerfileError(f"{words}: a command is a list of strings")
    return found


def _joined_lines(text: str) -> list[tuple[int, str]]:
    """Return each instruction's first line and its text, without comments and continuations."""
    if re.match(r"(#.*\n)*#\s*escape\s*=", text):
        raise DockerfileError("escape: another character than \\ is not executed here")
    found: list[tuple[int, str]] = []
    is_open = False
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        goes_on = line.rstrip().endswith("\\")
        part = line.rstrip().removesuffix("\\").strip()
        if is_open:
            first, before = found.pop()
            number, part = first, f"{before} {part}"
        found.append((number, part))
        is_open = goes_on
    if is_open:
        raise DockerfileError(f"line {found[-1][0]}: the file ends within an instruction")
    return found


def _instruction(line: int, text: str) -> Instruction:
    name, _, rest = text.partition(" ")
    name, rest = name.upper(), rest.strip()
    if name not in INSTRUCTIONS:
        raise DockerfileError(f"line {line}: {name}: executed are {', '.join(INSTRUCTIONS)}")
    options = []
    while match := re.match(r"--(\w+)=(\S+)\s+", rest):
        if match[1] not in OPTIONS.get(name, ()):
            raise DockerfileError(f"line {line}: {name} --{match[1]} is not executed here")
        options.append((match[1], match[2]))
        rest = rest[match.end() :]
    if not rest or rest.startswith("--"):
        raise DockerfileError(f"line {line}: {name} {rest}: words are missing")
    if "<<" in rest or (name in ("RUN", "COPY") and rest.startswith("[")):
        raise DockerfileError(f"line {line}: {name}: neither here-documents nor lists are executed here")
    return Instruction(line, name, tuple(options), rest)
