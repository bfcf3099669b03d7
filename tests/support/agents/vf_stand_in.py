"""Stands for the process of an environment of verifiers, without the package: its tasks say what it does."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from my_programs import complete
from support_path import SUPPORT_PATH

DESCRIPTION = {"messages": [{"role": "user", "content": "12*34="}], "answer": "408"}
LINES = threading.Lock()


def stand_in(folder: Path, *tasks: Mapping[str, Any], before: str = "") -> str:
    """Return the path of a Python that runs this module in place of the script that it is given.

    Args:
        folder: Folder for the file.
        tasks: Data of the tasks; ``do`` is what an episode does, and ``answer`` further keys of its answer.
        before: Lines of Python that it runs first.
    """
    path = folder / "python"
    path.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path[:0] = {SUPPORT_PATH.split(os.pathsep)!r}\n{before}\n"
        f"import vf_stand_in\nvf_stand_in.main(sys.argv[2], {list(tasks)!r})\n"
    )
    path.chmod(0o755)
    return str(path)


def main(mode: str, tasks: list[dict[str, Any]]) -> None:
    """Describe the tasks, or play episodes."""
    request = json.loads(sys.stdin.readline())
    if mode == "describe":
        number = request["num_tasks"]
        _print({"tasks": [{**DESCRIPTION, "data": task} for task in tasks[:number]]})
        return
    _print({"ready": True})
    for line in sys.stdin:
        asked = json.loads(line)
        if "cancel" in asked:
            print(f"cancelled {asked['cancel']}", file=sys.stderr, flush=True)
        else:
            threading.Thread(target=_play, args=[asked], daemon=True).start()


def _play(asked: Mapping[str, Any]) -> None:
    task = asked["task"]
    if task["do"] == "die once" and not os.path.exists(task["marker"]):
        Path(task["marker"]).touch()
        print("out of memory", file=sys.stderr, flush=True)
        os._exit(7)
    if task["do"] == "hang":
        time.sleep(3600)
    parameters = {"temperature": 7.0} if task["do"] == "ask for another temperature" else {"max_tokens": 4}
    try:
        complete(asked["base_url"], asked["api_key"], DESCRIPTION["messages"], **parameters)
    except OSError as error:
        task = {"answer": {"error": {"type": "HarnessError", "message": str(error)}}}
    rewards = {"rewards": {"pid": float(os.getpid())}, "metrics": {}, "is_truncated": False}
    _print({"episode": asked["episode"], **(task.get("answer") or rewards)})


def _print(value: Mapping[str, Any]) -> None:
    with LINES:
        print(json.dumps(value), flush=True)
