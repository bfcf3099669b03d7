"""``embodyflow answer``: the answer to the question of a paused run."""

import shlex
from pathlib import Path

from embodyflow.cli.plain_text import plain
from embodyflow.cli.run_folders.found_runs import find_run
from embodyflow.errors import ConfigError
from embodyflow.record.answers import AnswerFile


def give_answer(run_root: Path, run: str, answer: str | None) -> int:
    """Answer the question of a paused run, or print the question; return the exit code.

    A run whose process has ended reads the answer once it is resumed.

    Args:
        run_root: Folder that holds the runs' folders.
        run: Name of the run, or its folder.
        answer: The answer; ``None`` prints the question.

    Raises:
        ConfigError: There is no such run, it asks nothing, its question has no such answer, or a file is damaged.
    """
    folder = find_run(run_root, run).path
    file = AnswerFile(folder)
    if (question := file.open_question()) is None:
        raise ConfigError(f"{run}: asks nothing; only a run with the status paused does")
    text, allowed = question
    if answer is None:
        print(plain(text))
        print(f"answer by: embodyflow answer {shlex.quote(str(folder))} {'|'.join(allowed)}")
    elif answer not in allowed:
        raise ConfigError(f"{answer}: allowed are {', '.join(allowed)}")
    else:
        file.answer(answer)
        print(f"answered {answer}")
    return 0
