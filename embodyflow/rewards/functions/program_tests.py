"""Verifier that runs the program in a response against tests."""

import ast
import re
from collections.abc import Iterator

from embodyflow.rewards.functions.final_answers import final_text
from embodyflow.rewards.interface import Sample, Score, outcome
from embodyflow.rewards.reward_config import CodeConfig
from embodyflow.rewards.sandbox.sandbox import run_tests

# An opening fence ends its line; a closing fence begins its line and has no tag.
_BLOCK = re.compile(r"```([^\n`]*)\n(.*?)^[ \t]*```(?!\w)", re.DOTALL | re.MULTILINE)
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_TAGS = ("python", "py", "python3")


def score_program(sample: Sample, config: CodeConfig) -> Score:
    """Run the response's program (:func:`extract_program`), then the tests, which are the ground truth.

    Only the text after any thinking counts.

    The part ``timed_out`` counts programs that exceeded the time limit, and ``undecided`` those whose result is an
    object that decides by itself what it equals; both are not correct.
    With ``isolation=guard`` the part ``guarded`` is 1, so that a run's metrics state the weaker isolation.

    Raises:
        JudgeError: The tests pass the program a value that cannot cross between processes.
        ValueError: The tests are not valid Python, or run no assertion.
        SandboxError: The sandbox could not run the program.
    """
    tests = str(sample.ground_truth)
    _check_tests(tests)
    guarded = {"guarded": 1.0} if config.isolation == "guard" else {}
    program = extract_program(final_text(sample.response))
    if program is None:
        return outcome(False, answered=0.0, timed_out=0.0, undecided=0.0, **guarded)
    verdict = run_tests(program, tests, config)
    counts = {name: float(verdict == name) for name in ("timed_out", "undecided")}
    return outcome(verdict == "passed", answered=1.0, **counts, **guarded)


def _check_tests(tests: str) -> None:
    try:
        compile(tests, "<tests>", "exec")
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"ground_truth is not valid Python: {error}") from error
    if not runs_assertion(tests):
        raise ValueError("ground_truth runs no assertion, so every program would pass; call its test functions")


def runs_assertion(tests: str) -> bool:
    """Return True if tests have an assertion outside functions, or in a function or class whose name they use.

    A ``raise`` and a call of a function whose name begins with ``assert``, ``fail`` or ``raises`` count as assertions.
    """
    used: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(tests)]
    unused: list[_Definition] = []
    while waiting:
        for node in _walk_outside_definitions(waiting.pop()):
            if isinstance(node, (ast.Assert, ast.Raise)):
                return True
            name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
            if name.startswith(("assert", "fail", "raises")):
                return True
            used.add(name)
            if isinstance(node, _Definition):
                unused.append(node)
        ready = [node for node in unused if node.name in used]
        unused = [node for node in unused if node.name not in used]
        for node in ready:
            for part in node.body:
                is_method = isinstance(node, ast.ClassDef) and isinstance(part, _Definition)
                waiting += part.body if is_method else [part]  # type: ignore[attr-defined]
    return False


def _walk_outside_definitions(root: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and its descendants, without the bodies of functions and classes."""
    yield root
    if isinstance(root, _Definition):
        for decorator in root.decorator_list:
            yield from _walk_outside_definitions(decorator)
        return
    for child in ast.iter_child_nodes(root):
        yield from _walk_outside_definitions(child)


def extract_program(response: str) -> str | None:
    """Return the last fenced block tagged as Python, else the last without a tag; ``None`` if there is neither."""
    blocks = [(tag.lower().split(), block) for tag, block in _BLOCK.findall(response)]
    tagged = [block for tag, block in blocks if tag and tag[0] in _TAGS]
    chosen = tagged or [block for tag, block in blocks if not tag]
    return chosen[-1] if chosen else None
