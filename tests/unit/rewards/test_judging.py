# ruff: noqa: E501 - programs and tests are data
"""Tests and program in two processes: attacks fail, right programs pass, and what cannot be judged is reported."""

import os
import shutil

import pytest

from embodyflow.rewards.functions.function_registry import build_reward_function
from embodyflow.rewards.interface import Sample
from embodyflow.rewards.reward_config import CodeConfig
from embodyflow.rewards.sandbox.sandbox import JudgeError, SandboxError, run_tests


def namespaces_permitted():
    try:
        return run_tests("", "", CodeConfig(isolation="namespaces")) == "passed"
    except (SandboxError, ValueError):
        return False


ISOLATIONS = ["guard", *(["namespaces"] if namespaces_permitted() else [])]
if shutil.which("bwrap") and os.getuid() != 0:
    ISOLATIONS.append("bubblewrap")


@pytest.fixture(params=ISOLATIONS)
def run(request):
    """Return a function that judges a program by tests."""

    def run(program, tests):
        return run_tests(program, tests, CodeConfig(isolation=request.param, time_limit=10.0))

    return run


TESTS = "SECRET = 48151623\nassert f(1) == SECRET\nassert f(2) == 'expected text'"
ALWAYS_EQUAL = """
def yes(*a): return True
class Evil{base}:
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = yes
    __ne__ = lambda *a: False
    __hash__ = object.__hash__
    __sub__ = __rsub__ = lambda *a: 0
def f(x): return Evil()
"""
FRAMES = """
import gc, sys
def f(x):
    frame, found = sys._getframe().f_back, gc.get_objects()
    while frame:
        found += [*frame.f_locals.values(), *frame.f_globals.values(), *frame.f_code.co_consts]
        frame = frame.f_back
    answer = 48151620 + 3 if x == 1 else 'expected' + ' text'
    if any(type(thing) is type(answer) and thing == answer for thing in found):
        return answer
"""
TOKEN = """
import os, sys
def f(x):
    frame = sys._getframe()
    while frame:
        if 'token' in frame.f_locals:
            frame.f_locals['connection'].sendall(frame.f_locals['token'])
        if 'connection' in frame.f_locals:
            frame.f_locals['connection'].sendall(b'passed')
        frame = frame.f_back
"""
PROC = """
import glob, os
def f(x):
    for pid in filter(str.isdigit, os.listdir('/proc')):
        for name in ('cmdline', 'environ', 'mem'):
            try:
                text = open(f'/proc/{pid}/{name}', 'rb').read(10**6)
            except OSError:
                continue
            if b'expected' + b' text' in text:
                return 'expected' + ' text' if x == 2 else 48151620 + 3
    for path in glob.glob('/tmp/embodyflow-sandbox-*/*'):
        if 'expected' in open(path).read():
            return 'expected' + ' text'
"""
WRITE = """
import json, os, socket, threading, time
LINES = {lines!r}
def forge():
    for descriptor in range(3, 64):
        for line in LINES:
            try:
                os.write(descriptor, line.encode())
            except OSError:
                pass
"""
FORGED = WRITE.format(
    lines=["passed", "started", "passed\n", '{"value": true, "changes": [], "printed": ""}\n', "[" * 9999]
)
PICKLED = '{"exception": ["builtins", "eval", []], "library": ["os", "system"]}\n'
ATTACKS = {
    "replaced_exec": "import builtins\nbuiltins.exec = print\nf = abs",
    "replaced_compile": "import builtins\nbuiltins.compile = lambda *a, **k: (lambda: 0).__code__\nf = abs",
    "frames_and_objects": FRAMES,
    "token": TOKEN,
    "files_and_proc": PROC,
    "exit_at_once": "import os\nos._exit(0)",
    "exit_in_the_call": "import os\ndef f(x): os._exit(0)",
    "system_exit": "import sys\nsys.exit(0)",
    "system_exit_in_the_call": "import sys\ndef f(x): sys.exit(0)",
    "exit_at_the_end": "import atexit, os\natexit.register(os._exit, 0)\nf = abs",
    "forged_lines": f"{FORGED}forge()\ndef f(x): return forge()",
    "forged_by_a_thread": f"{FORGED}def f(x):\n    threading.Thread(target=lambda: [forge() for _ in range(99)]).start()",
    "forged_class": WRITE.format(lines=[PICKLED]) + "def f(x): return forge()",
    "replaced_json": "import json\njson.dumps = lambda *a, **k: '{\"value\": true}'\njson.loads = lambda *a: {}\nf = abs",
    "replaced_print": "import builtins, pickle\nbuiltins.print = pickle.dumps = pickle.loads = lambda *a: True\nf = abs",
    "always_equal_int": ALWAYS_EQUAL.format(base="(int)"),
    "always_equal_str": ALWAYS_EQUAL.format(base="(str)"),
    "always_equal_float": ALWAYS_EQUAL.format(base="(float)"),
    "always_equal_list": ALWAYS_EQUAL.format(base="(list)"),
    "always_equal_dict": ALWAYS_EQUAL.format(base="(dict)"),
    "destructor": "class D:\n    def __del__(self): raise SystemExit(0)\ndef f(x): D()",
    "generator": "def f(x):\n    yield 48151620 + 3",
    "recursion_limit": "import sys\nsys.setrecursionlimit(5)\nf = abs",
    "builtins_of_the_tests": "import builtins\nbuiltins.AssertionError = lambda *a: None\nf = abs\nSECRET = 1",
    "exception": "def f(x): raise AssertionError",
    "deep": "def f(x):\n    y = []\n    for _ in range(900): y = [y]\n    return y",
    "cyclic": "def f(x):\n    y = []\n    y.append(y)\n    return y",
}


@pytest.mark.parametrize("program", ATTACKS.values(), ids=ATTACKS)
def test_an_attack_fails(program, run):
    assert run(program, TESTS) == "failed"


UNITTEST = """
import unittest
class Test(unittest.TestCase):
    def test_f(self): self.assertEqual(f(1), 2)
result = unittest.TestResult()
unittest.defaultTestLoader.loadTestsFromTestCase(Test).run(result)
assert result.testsRun == 1 and result.wasSuccessful()
"""


EMPTY = "import numpy\ndef f(x): return []\ndef g(x): return numpy.empty((0, 2))"
EMPTY_TESTS = [
    "assert np.allclose(f(1), 2.5)",
    "assert np.isclose([[1, 2]], g(1)).all()",
    "assert (g(1) == np.array([1, 2])).all()",
    "assert (np.array(f(1)) == 2.5).all()",
    "assert np.sum(np.abs(g(1) - [1, 2])) < 1e-6",
    "np.testing.assert_allclose(f(1), 2.5)",
    "np.testing.assert_almost_equal(actual=f(1), desired=2.5)",
]


@pytest.mark.parametrize(
    ("program", "tests"),
    [
        ("def f(x): return [9]\nlen = abs = all = sorted = lambda *a: 3", "assert len(f(1)) == 3"),
        ("def f(x): return 9\nclass math:\n    isclose = lambda *a: True", "assert math.isclose(f(1), 2.5)"),
        ("import math\ndef f(x): return 9\nmath.isclose = lambda *a, **k: True", "assert math.isclose(f(1), 2.5)"),
        ("import numpy\nnumpy.allclose = lambda *a, **k: True\ndef f(x): return 9", "assert np.allclose(f(1), [2.5])"),
        ("def f(x): return 1", "try:\n    assert f(1) == 2\nexcept Exception as e:\n    raise"),
        ("import os\ndef f(x): os._exit(0)", "try:\n    f(1)\nexcept BaseException:\n    pass"),
        ("import os\ndef f(x): return os._exit", "assert f(1)(0)"),
        ("def f(x): return eval", "assert f(1)('1') == 2"),
        ("class f(Exception): pass", "assert f(1) == 2"),
        ("def f(x): return 9\ndef abs(x): return 0", "from response import f\nassert abs(f(1) - 2) < 1e-9"),
        ("def f(x): return 9\ndef all(x): return True", "import response as r\nassert all(r.f(i) == i for i in [1])"),
        ("def sum(*a): return 9\ndef abs(x): return 0", "assert abs(sum(1, 2) - 2.5) < 1e-9"),
        ("import unittest\ndef f(x): raise unittest.SkipTest", UNITTEST),
        *[(EMPTY, f"import numpy as np\n{tests}") for tests in EMPTY_TESTS],
        ("import unittest\nclass E(unittest.case._ShouldStop): pass\ndef f(x): raise E", UNITTEST),
        (
            "from embodyflow.rewards.sandbox.judging import program_side\nclass Evil(list):\n    __sub__ = lambda *a: 0\n"
            "class Plain: pass\nprogram_side.as_data = lambda value: Plain()\ndef f(x): return Evil()",
            "assert f(1) - 2.5 == 0",
        ),
        (
            "class Evil:\n    __array_interface__ = {'shape': (1,), 'typestr': '<f8', 'data': (4096, False), 'version': 3}\n"
            "def f(x): return Evil()",
            "import numpy\nassert numpy.asarray(f(1)).dtype == float",
        ),
    ],
)
def test_a_program_cannot_replace_what_the_tests_judge_with(program, tests, run):
    assert run(program, tests) == "failed"


STACK = """
class Stack:
    made = 0
    def __init__(self, items=()): self.items = list(items)
    def push(self, x): self.items.append(x); return self
    def pop(self):
        if not self.items: raise EmptyError('empty', 3)
        return self.items.pop()
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
    def __getitem__(self, i): return self.items[i]
    def __add__(self, other): return Stack(self.items + other.items)
    def __eq__(self, other): return isinstance(other, Stack) and self.items == other.items
    def __enter__(self): return self
    def __exit__(self, *a): self.items.clear()
class EmptyError(LookupError): pass
"""
STACK_TESTS = """
s = Stack([1]).push(2)
assert len(s) == 2 and s[0] == 1 and list(s) == [1, 2] and 2 in s and 5 not in s
assert isinstance(s, Stack) and not isinstance(3, Stack) and not isinstance(s, list) and not callable(s)
assert s == Stack([1, 2]) and s != Stack() and s + s == Stack([1, 2, 1, 2])
s.made = 4
assert s.made == 4 and Stack.made == 0 and s.items == [1, 2] and s is s.push(3)
assert (s.pop(), s.pop(), s.pop()) == (3, 2, 1)
try:
    s.pop()
    assert False
except EmptyError as error:
    assert isinstance(error, LookupError) and error.args == ('empty', 3)
with Stack([1]) as inside:
    assert inside.items == [1]
assert not inside
"""
DATA = """
from collections import Counter, defaultdict, deque, namedtuple, OrderedDict
from decimal import Decimal
from fractions import Fraction
import datetime, enum
def same(x): return x
P = namedtuple('P', 'a b')
class Color(enum.IntEnum): RED = 3
class Words(list):
    def twice(self): return self + self
def words(): return Words(['a'])
def point(): return P(1, 2)
"""
DATA_TESTS = """
import datetime, numpy as np
from collections import Counter, defaultdict, deque
from decimal import Decimal
from fractions import Fraction
inf = float('inf')
zone = datetime.timezone.utc
for x in [None, True, 1, -2**70, 10**5000 if False else 10**4000, 1.5, -0.0, inf, 'a\\ud800é', b'\\x00\\xff', bytearray(b'a'), 1+2j,
          (1, (2,)), [1, [2]], {1: 'a', (2,): [3]}, {1, 2}, frozenset({1}), range(3), slice(1, None), Counter('aab'),
          deque([1]), Fraction(1, 3), Decimal('0.10'), datetime.date(2024, 1, 2), datetime.datetime(2024, 1, 2, 3, tzinfo=zone),
          datetime.time(1), datetime.timedelta(1, 2), defaultdict(int, a=1), int, NotImplemented, ...][:-1]:
    assert same(x) == x and type(same(x)) is type(x), x
assert same(float('nan')) != same(float('nan'))
assert same((1, 2)) != [1, 2] and same(1.0) == 1 and type(same(1.0)) is float
array = same(np.arange(6.0).reshape(2, 3))
assert isinstance(array, np.ndarray) and (array == np.arange(6.0).reshape(2, 3)).all() and same(np.int64(3)) == 3
assert point() == (1, 2) and point().a == 1 and point()._replace(a=5) == (5, 2) and isinstance(point(), P)
assert Color.RED == 3 and Color(3).name == 'RED'
w = words()
w.append('b')
assert w == ['a', 'b'] and ['a', 'b'] == w and w.twice() == ['a', 'b', 'a', 'b'] and isinstance(w, list) and len(w) == 2
x = [1]
assert same(x) is x and same([x])[0] is x
"""
PASSING = {
    "coroutines": (
        "import asyncio\nasync def f(x):\n    'Wait.'\n    await asyncio.sleep(0.01)\n    return x + 1",
        "import asyncio\nasync def main(): return await f(1) + sum(await asyncio.gather(f(1), f(2)))\n"
        "assert asyncio.run(f(1)) == 2 and asyncio.run(main()) == 7 and f.__doc__ == 'Wait.'",
    ),
    "class": (STACK, STACK_TESTS),
    "data": (DATA, DATA_TESTS),
    "humaneval": (
        "def add(a, b): return a + b",
        "METADATA = {}\n\n\ndef check(candidate):\n    assert candidate(1, 2) == 3\n    assert abs(candidate(.1, .2) - .3) < 1e-9\n\n"
        "check(add)",
    ),
    "program_named_as_a_builtin": ("def sum(a, b): return a * b", "assert sum(10, 15) == 150"),
    "program_named_as_a_builtin_beside_others": (
        "def sum(a, b): return a * b",
        "assert sum(10, 15) == 150 and isinstance(sum(1, 2), int)",
    ),
    "program_named_as_a_builtin_to_judge_with": ("def sorted(a): return a[::-1]", "assert sorted([1, 2]) == [2, 1]"),
    "arrays_without_elements": (
        EMPTY,
        "import numpy as np\nassert np.allclose(f(1), []) and (g(1) == np.empty((0, 2))).all() and g(1).shape == (0, 2)\n"
        "np.testing.assert_array_equal(np.array(f(1)), [])\nassert np.array(f(1)).sum() == 0 and g(1).tolist() == []\n"
        "assert len(np.concatenate([g(1), [[1, 2]]]) * 2) == 1 and (g(1) * 2).size == 0",
    ),
    "unittest": ("def f(x): return x + 1", UNITTEST),
    "changed_arguments": (
        "def f(x, y, *, z):\n    x.sort(); x[0].append(9); y.clear(); z['a'] = 1; x.append(x[0])",
        "row, y, z = [1], {3}, {}\nx = [[2], row]\nf(x, y, z=z)\n"
        "assert x == [[1, 9], [2], [1, 9]] and x[0] is row and x[2] is row and row == [1, 9] and not y and z == {'a': 1}",
    ),
    "exceptions": (
        "def f(x):\n    if x < 0: raise ValueError(f'negative: {x}')\n    return {}[x]",
        "try:\n    f(-1)\n    raise AssertionError\nexcept ValueError as error:\n    assert str(error) == 'negative: -1'\n"
        "try:\n    f(1)\n    raise AssertionError\nexcept KeyError as error:\n    assert error.args == (1,)",
    ),
    "system_exit_expected": (
        "import sys\ndef f(): sys.exit(3)",
        "try:\n    f()\nexcept SystemExit as error:\n    assert error.code == 3\nelse:\n    assert False",
    ),
    "pytest_raises": (
        "import json\ndef f(x): return json.loads(x)",
        "import json, pytest\nwith pytest.raises(json.JSONDecodeError, match='Expecting') as e:\n    f('{')\nassert e.value.pos == 1",
    ),
    "callbacks": (
        "def apply(g, x): return g(x)\ndef g(x): return x + 1\ndef total(xs): return sum(xs)",
        "assert apply(lambda x: x + g(x), 2) == 5 and apply(len, 'ab') == 2 and apply(g, 2) == 3\n"
        "assert total(i for i in range(4)) == 6 and total(map(int, '12')) == 3\n"
        "try:\n    apply(lambda x: 1 / 0, 1)\n    raise AssertionError\nexcept ZeroDivisionError:\n    pass",
    ),
    "generators": (
        "import itertools\ndef f():\n    yield from itertools.count()\ndef closure(n): return lambda x: x + n",
        "import types\ng = f()\nassert next(g) == 0 and next(g) == 1 and isinstance(g, types.GeneratorType)\n"
        "assert [x for x, _ in zip(f(), range(3))] == [0, 1, 2] and closure(2)(3) == 5 and callable(closure(2))",
    ),
    "views": (
        "h = sum\ndef f(d): return d.keys()\ndef g(d): return d.items()",
        "assert f({1: 2}) == {1} and set(g({1: 2})) == {(1, 2)} and h({1: 2}.values()) == 2",
    ),
    "printed": (
        "def f(): print('hello')",
        "import io, contextlib\nout = io.StringIO()\nwith contextlib.redirect_stdout(out):\n    f()\nassert out.getvalue() == 'hello\\n'",
    ),
    "standard_input": (
        "def f(): return input() + 'x'",
        "import io, sys\nsys.stdin = io.StringIO('a\\n')\nassert f() == 'ax'",
    ),
    "modules_without_import": (
        "def f(x): return x / 3",
        "assert math.isclose(f(1), 1 / 3) and np.allclose(f(1), 1 / 3)",
    ),
    "imports_of_the_program": (
        "from collections import Counter\ndef f(x): return Counter(x)",
        "assert f('aa') == Counter({'a': 2})",
    ),
    "import_of_the_program": (
        "def f(x): return x",
        "from response import f as g\nassert g(1) == 1 and g.__name__ == 'f'",
    ),
    "functions_in_tests": (
        "N = 4\ndef f(x): return N * x",
        "def check():\n    return [f(i) for i in range(2)]\nassert check() == [0, N]",
    ),
    "unequal_object": ("def f(x): return object()", "assert f(1) != 2 and not f(1) == 2 and f(1) not in [2]"),
}


@pytest.mark.parametrize("run", ISOLATIONS[-1:], indirect=True)
@pytest.mark.parametrize(("program", "tests"), PASSING.values(), ids=PASSING)
def test_a_right_program_passes(program, tests, run):
    assert run(program, tests) == "passed"


MONEY = "class Money:\n    __eq__ = __lt__ = __sub__ = lambda a, b: True\n    __contains__ = __eq__\ndef f(): return Money()"


@pytest.mark.parametrize(
    "tests", ["f() == 3", "3 == f()", "f() < 3", "f() - 3", "3 in f()", "f() in [3]", "(1, 3) == (1, f())"]
)
def test_an_object_of_the_program_compared_with_data_is_undecided(tests, run):
    assert run(MONEY, f"assert {tests}") == "undecided"


@pytest.mark.parametrize(
    "tests",
    [
        "for got, want in zip(map(f, [1, 2]), [3, 4]):\n    assert got == want",
        "assert all(map(lambda pair: f(pair[0]) == pair[1], [(1, 2)]))",
    ],
)
def test_a_program_that_ends_the_loop_of_its_tests_is_undecided(tests, run):
    assert run("def f(x): raise StopIteration", tests) == "undecided"


def test_undecided_programs_are_counted():
    function = build_reward_function(CodeConfig(isolation="guard"))
    score = function(Sample(1, "?", f"```python\n{MONEY}\n```", "assert f() == 3", "code", 3, True))
    assert (score.reward, score.parts["undecided"]) == (0.0, 1.0)


@pytest.mark.parametrize(
    "tests", ["class A: pass\nassert f(A()) == 1", "import builtins\nbuiltins.input = lambda: 'a'\nassert f(1) == 1"]
)
def test_tests_that_cannot_judge_are_an_error(tests, run):
    with pytest.raises(JudgeError, match=r"^ground_truth cannot judge a program: the tests "):
        run("def f(x): return 1", tests)


@pytest.mark.parametrize(
    "tests",
    [
        "",
        "f(1)",
        "def check(candidate):\n    assert candidate(1) == 1",
        "def test_f():\n    assert f(1) == 1",
        "# assert",
    ],
)
def test_a_ground_truth_that_runs_no_assertion_is_refused(tests):
    function = build_reward_function(CodeConfig(isolation="guard"))
    with pytest.raises(ValueError, match=r"^ground_truth runs no assertion"):
        function(Sample(1, "?", "```python\ndef f(x): return 1\n```", tests, "code", 3, True))
