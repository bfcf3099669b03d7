"""Journal of an episode's calls: a repeated rollout gets what the lost one got, from the model and from tools."""

import hashlib
import json
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any, TypeAlias

from embodyflow.agents.chat.transcript import Tokens
from embodyflow.agents.tools.tool_runner import Answer
from embodyflow.data.rows_file import make_folder_of
from embodyflow.generation.interface import Completion

Key: TypeAlias = tuple[str, int, int, int]
"""Kind of call, uid of the episode, its draw, and number of the call among those of its kind."""


class ChangedCallError(RuntimeError):
    """A repeated episode asks for something else than the lost attempt did at the same place."""


class CallJournal:
    """Calls in a file of JSON lines, written as they end.

    A call is found by its place in the episode, and its request must be the same: an episode that asks for something
    else than it did before would otherwise mix two episodes.

    Args:
        path: Path of the file, which the first call creates; ``None`` keeps nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known = {} if path is None or not path.exists() else _read(path)

    def completion(self, uid: int, draw: int, turn: int, prompt_ids: Tokens) -> Completion | None:
        """Return the turn that an earlier attempt sampled after these tokens, or ``None``.

        Raises:
            ChangedCallError: The earlier attempt had other tokens here.
        """
        found = self._find(("turn", uid, draw, turn), prompt_ids)
        if found is None:
            return None
        tokens, log_probs = tuple(found["tokens"]), tuple(found["log_probs"])
        versions = tuple(found.get("versions", ()))
        return Completion(tokens, log_probs, found["finish_reason"], found["policy_version"], versions)

    def add_completion(self, uid: int, draw: int, turn: int, prompt_ids: Tokens, completion: Completion) -> None:
        """Record a turn of the model."""
        self._append(
            ("turn", uid, draw, turn),
            prompt_ids,
            {
                "tokens": completion.token_ids,
                "log_probs": completion.log_probs,
                "finish_reason": completion.finish_reason,
                "policy_version": completion.policy_version,
                **({"versions": completion.versions} if completion.versions else {}),
            },
        )

    def answer(self, uid: int, draw: int, call: int, name: str, arguments: Mapping[str, Any]) -> Answer | None:
        """Return the answer that an earlier attempt got, or ``None``.

        Raises:
            ChangedCallError: The earlier attempt called another tool or with other arguments.
        """
        found = self._find(("tool", uid, draw, call), [name, arguments])
        return None if found is None else Answer(found["outcome"], found["text"], found["retries"])

    def add_answer(
        self, uid: int, draw: int, call: int, name: str, arguments: Mapping[str, Any], answer: Answer
    ) -> None:
        """Record the answer of a tool."""
        values = {"name": name, "arguments": arguments, **vars(answer)}
        self._append(("tool", uid, draw, call), [name, arguments], values)

    def _find(self, key: Key, request: Any) -> dict[str, Any] | None:
        found = self._known.get(key)
        if found is not None and found["request"] != _digest(request):
            kind, uid, draw, number = key
            raise ChangedCallError(
                f"episode {uid}, draw {draw}: {kind} {number} differs from that of the lost attempt; a workflow must "
                "depend on nothing but its arguments, the model and the answers of tools"
            )
        return found

    def _append(self, key: Key, request: Any, values: Mapping[str, Any]) -> None:
        if self._path is None:
            return
        line = json.dumps({"key": key, "request": _digest(request), **values}) + "\n"
        # Closing the file after each line hands it to a network file system's server.
        with self._open(self._path) as file:
            file.write(line.encode())

    def _open(self, path: Path) -> FileIO:
        try:
            return open(path, "ab", buffering=0)
        except FileNotFoundError:  # the first call creates the folder
            make_folder_of(path)
            return open(path, "ab", buffering=0)


def _digest(request: Any) -> str:
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:32]


def _read(path: Path) -> dict[Key, dict[str, Any]]:
    """Read the complete lines; cut off the part of a line that a killed process left."""
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        path.write_bytes(whole)
    lines = [json.loads(line) for line in whole.splitlines()]
    return {(kind, uid, draw, number): line for line in lines for kind, uid, draw, number in [line["key"]]}
