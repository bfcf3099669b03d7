"""Programs judged by tests."""

import re

from embodyflow.rewards.interface import Sample, Score, outcome
from embodyflow.rewards.reward_config import CodeConfig
from embodyflow.rewards.sandbox import run_tests

# A fence that opens ends its line; one that closes begins its line, and what follows is no tag.
_BLOCK = re.compile(r"```([^\n`]*)\n(.*?)^[ \t]*```(?!\w)", re.DOTALL | re.MULTILINE)
_TAGS = ("python", "py", "python3")


def passes_tests(sample: Sample, config: CodeConfig) -> Score:
    """Run the program in the response (:func:`program_in`) and then the tests, which are the ground truth.

    The part ``timed_out`` counts programs that ran out of time; they are not correct.

    Raises:
        ValueError: the tests are not Python.
        SandboxError: the sandbox did not come to run the program.
    """
    tests = str(sample.ground_truth)
    try:
        compile(tests, "<tests>", "exec")
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"ground_truth is not Python: {error}") from error
    program = program_in(sample.response)
    if program is None:
        return outcome(False, answered=0.0, timed_out=0.0)
    verdict = run_tests(program, tests, config)
    return outcome(verdict == "passed", answered=1.0, timed_out=float(verdict == "timed_out"))


def program_in(response: str) -> str | None:
    """Return the last fenced block that says it is Python, else the last that says nothing; ``None`` without one."""
    blocks = [(tag.lower().split(), block) for tag, block in _BLOCK.findall(response)]
    tagged = [block for tag, block in blocks if tag and tag[0] in _TAGS]
    chosen = tagged or [block for tag, block in blocks if not tag]
    return chosen[-1] if chosen else None
