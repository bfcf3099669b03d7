"""Verifier that runs the program in a response against tests."""

import re

from embodyflow.rewards.functions.final_answers import final_text
from embodyflow.rewards.functions.sandbox import run_tests
from embodyflow.rewards.interface import Sample, Score, outcome
from embodyflow.rewards.reward_config import CodeConfig

# An opening fence ends its line; a closing fence begins its line and has no tag.
_BLOCK = re.compile(r"```([^\n`]*)\n(.*?)^[ \t]*```(?!\w)", re.DOTALL | re.MULTILINE)
_TAGS = ("python", "py", "python3")


def score_program(sample: Sample, config: CodeConfig) -> Score:
    """Run the response's program (:func:`extract_program`), then the tests, which are the ground truth.

    Only the text after any thinking counts.

    The part ``timed_out`` counts programs that exceeded the time limit; they are not correct.
    With ``isolation=guard`` the part ``guarded`` is 1, so that a run's metrics state the weaker isolation.

    Raises:
        ValueError: The tests are not valid Python.
        SandboxError: The sandbox could not run the program.
    """
    tests = str(sample.ground_truth)
    try:
        compile(tests, "<tests>", "exec")
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"ground_truth is not valid Python: {error}") from error
    guarded = {"guarded": 1.0} if config.isolation == "guard" else {}
    program = extract_program(final_text(sample.response))
    if program is None:
        return outcome(False, answered=0.0, timed_out=0.0, **guarded)
    verdict = run_tests(program, tests, config)
    return outcome(verdict == "passed", answered=1.0, timed_out=float(verdict == "timed_out"), **guarded)


def extract_program(response: str) -> str | None:
    """Return the last fenced block tagged as Python, else the last without a tag; ``None`` if there is neither."""
    blocks = [(tag.lower().split(), block) for tag, block in _BLOCK.findall(response)]
    tagged = [block for tag, block in blocks if tag and tag[0] in _TAGS]
    chosen = tagged or [block for tag, block in blocks if not tag]
    return chosen[-1] if chosen else None
