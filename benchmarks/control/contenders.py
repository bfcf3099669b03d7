"""Contenders of a comparison, each in a process of its own that runs the script of the comparison again."""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.commands import ROOT

Contender = Callable[[list[str]], dict[str, Any]]
"""Function from words of the configuration to what was measured."""


def facts_of(script: str, name: str, words: Sequence[str]) -> dict[str, Any]:
    """Run one contender of a script, which is named as a module; return what was measured."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "answer.json")
        command = [sys.executable, "-m", script, "--contender", name, "--answer", str(answer), *words]
        subprocess.run(command, cwd=ROOT, check=True)
        facts: dict[str, Any] = json.loads(answer.read_text())
    return facts


def parse(parser: argparse.ArgumentParser, contenders: Mapping[str, Contender]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options and words of a script; in the process of a contender run that one and exit."""
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--contender", choices=list(contenders), help=argparse.SUPPRESS)
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    arguments, words = parser.parse_known_args()
    if arguments.contender:
        arguments.answer.write_text(json.dumps(contenders[arguments.contender](words)))
        sys.exit()
    return arguments, words
