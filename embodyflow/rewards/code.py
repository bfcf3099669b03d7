"""Programs judged by tests."""

import re

from embodyflow.rewards.configuration import CodeConfig
from embodyflow.rewards.interface import Sample, Score, outcome
from embodyflow.rewards.sandbox import run_tests

_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)


def passes_tests(sample: Sample, config: CodeConfig) -> Score:
    """Run the response's last fenced block and then the tests, which are the ground truth.

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
    blocks = _BLOCK.findall(sample.response)
    if not blocks:
        return outcome(False, answered=0.0, timed_out=0.0)
    verdict = run_tests(blocks[-1], tests, config)
    return outcome(verdict == "passed", answered=1.0, timed_out=float(verdict == "timed_out"))
