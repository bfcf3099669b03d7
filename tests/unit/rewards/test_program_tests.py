"""Programs in the sandbox: which pass and fail, isolation, and cleanup."""

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psutil
import pytest
from waiting import eventually

from embodyflow.errors import ConfigError
from embodyflow.rewards.functions.function_registry import build_reward_function
from embodyflow.rewards.functions.program_tests import extract_program
from embodyflow.rewards.interface import Sample
from embodyflow.rewards.reward_config import CodeConfig
from embodyflow.rewards.sandbox import sandbox
from embodyflow.rewards.sandbox.sandbox import SandboxError, run_tests

TESTS = "assert add(1, 2) == 3\nassert add(-1, 1) == 0"
ADD = "\ndef add(a, b):\n    return a + b\n"


def namespaces_permitted():
    try:
        return run_tests("", "", CodeConfig(isolation="namespaces")) == "passed"
    except SandboxError:
        return False


ISOLATIONS = ["guard", "namespaces"] if namespaces_permitted() else ["guard"]
if shutil.which("bwrap") and os.getuid() != 0:
    ISOLATIONS.insert(0, "bubblewrap")


@pytest.fixture(params=ISOLATIONS)
def run(request, tmp_path, monkeypatch):
    """Return a function that runs a program; afterwards check that no process and no folder is left."""

    def run(program, time_limit=10.0, memory_gb=0.5):
        config = CodeConfig(isolation=request.param, time_limit=time_limit, memory_gb=memory_gb)
        return run_tests(program, TESTS, config)

    run.isolation = request.param
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield run
    assert eventually(lambda: not left_over(), 5.0), left_over()
    assert not list(tmp_path.glob("embodyflow-sandbox-*"))


def left_over():
    """Return the sandboxes that are this process's or nobody's; other test processes have sandboxes of their own."""
    own = psutil.Process()
    found = []
    for process in sandboxes(psutil.process_iter()):
        with suppress(psutil.Error):
            parents = process.parents()
            if own in parents or own.parent() not in parents:
                found.append(process)
    return found


def sandboxes(processes):
    """Return the processes that run in a sandbox or set one up."""
    found = []
    for process in processes:
        with suppress(psutil.Error):  # the process has ended
            if "sandbox_child" in " ".join(process.cmdline()):
                found.append(process)
    return found


TALK = """
import os
for descriptor in range(3, 20):
    try:
        os.write(descriptor, b"passed" * 1000)
    except OSError:
        pass
"""
DATACLASS = f"""
from __future__ import annotations
from dataclasses import dataclass
from typing import ClassVar, get_type_hints
@dataclass
class Sum:
    terms: tuple[int, int]
    start: ClassVar[int] = 0
assert "terms" in get_type_hints(Sum){ADD}"""
PASSING = {
    "plain": ADD,
    "library": "import math, numpy\ndef add(a, b):\n    return int(numpy.add(a, b))",
    "own_files": f"open('notes', 'w').write('x')\nassert open('notes').read() == 'x'{ADD}",
    "no_root": f"import os\nassert os.getuid() != 0 and not os.environ.get('SECRET'){ADD}",
    "script": f"import sys{ADD}if __name__ == '__main__':\n    print(add(*map(int, input().split())))\n    sys.exit(0)",
    "dataclass": DATACLASS,
}
FAILING = {
    "wrong": "def add(a, b):\n    return a",
    "syntax": "def add(a, b:",
    "raises": "1 / 0",
    "exits": "import sys; sys.exit(0)",
    "exits_at_once": "import os; os._exit(0)",
    "kills_itself": "import os; os.kill(os.getpid(), 9)",
    "reads_input": f"input(){ADD}",
    "eats_memory": f"x = bytearray(2 * 10**9){ADD}",
    "large_file": f"open('x', 'wb').write(bytes(2**25)){ADD}",
    "fills_the_disk": f"for i in range(9):\n    open(str(i), 'wb').write(bytes(2**23)){ADD}",
    "writes_to_our_socket": TALK,
}


@pytest.mark.parametrize("program", PASSING.values(), ids=PASSING)
def test_a_program_that_passes(program, run, monkeypatch):
    monkeypatch.setenv("SECRET", "token")
    assert run(program) == "passed"


@pytest.mark.parametrize("run", ISOLATIONS[-1:], indirect=True)
@pytest.mark.parametrize("program", FAILING.values(), ids=FAILING)
def test_a_program_that_fails(program, run):
    assert run(program) == "failed"


@pytest.mark.parametrize("run", ISOLATIONS[-1:], indirect=True)
@pytest.mark.parametrize("program", ["import time; time.sleep(100)", "while True: print('x' * 1000)"])
def test_a_program_that_never_ends(program, run):
    assert run(program, time_limit=0.5) == "timed_out"


def test_programs_have_no_network(run):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert run(f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 5){ADD}") == "failed"


def test_processes_that_a_program_starts_end_with_it(run):
    verdict = run(f"import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(1000){ADD}")
    assert verdict == ("failed" if run.isolation == "guard" else "passed")


def test_a_fork_bomb_is_stopped(run):
    assert run("import os\nwhile True:\n    os.fork()", time_limit=0.5) in ("failed", "timed_out")


MANY_THREADS = f"""
import threading, time
threading.stack_size(2**18)
for _ in range(58):
    threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
time.sleep(100){ADD}"""
THREAD_POOL = f"""
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
together = Barrier(16)
with ThreadPoolExecutor(16) as pool:
    assert len(list(pool.map(lambda _: together.wait(10), range(16)))) == 16{ADD}"""


def test_the_limit_on_threads_is_per_program(run):
    def ours():
        return sandboxes(psutil.Process().children(recursive=True))

    with ThreadPoolExecutor(1) as beside:
        verdict = beside.submit(run, MANY_THREADS, time_limit=30.0, memory_gb=2.0)
        assert eventually(lambda: any(process.num_threads() >= 58 for process in ours()), 20.0)
        assert run(THREAD_POOL, memory_gb=2.0) == "passed"
        ours()[0].kill()  # the others end with it
        assert verdict.result() == "failed"


def test_a_program_cannot_write_outside_its_folder(run, tmp_path):
    os.chmod(tmp_path, 0o755)
    assert run(f"open({str(tmp_path / 'x')!r}, 'w'){ADD}") == "failed"
    assert not list(tmp_path.iterdir())


def test_the_memory_limit_counts_all_processes_together(run):
    if run.isolation == "guard":
        pytest.skip("the guard refuses further processes")
    program = "import os, time\nfor _ in range(5):\n    if os.fork() == 0:\n        x = bytearray(b'1') * (3 * 10**8)\n"
    program += f"        time.sleep(60)\ntime.sleep(3){ADD}"
    assert run(program, time_limit=30.0, memory_gb=0.6) == "failed"


def test_the_files_of_a_program_are_limited_together(run):
    program = f"import time\nfor i in range(9):\n    open(str(i), 'wb').write(bytes(2**23))\ntime.sleep(2){ADD}"
    assert run(program) == "failed"


NESTED = """
import os, time
for _ in range({depth}):
    os.mkdir({name!r})
    os.chdir({name!r})
open({name!r}, 'w').close()
time.sleep(0.3)
"""


@pytest.mark.parametrize(("depth", "name"), [(1200, "d"), (15, "d" * 255)], ids=["deep", "long_names"])
def test_folders_of_any_depth_end_no_run_and_are_removed(depth, name, run):
    verdict = run(NESTED.format(depth=depth, name=name) + ADD)
    assert verdict == ("failed" if run.isolation == "guard" else "passed")  # others keep them in memory


def test_a_program_cannot_make_files_without_end(run):
    assert run(f"for i in range(20_000):\n    open(str(i), 'w').close()\nimport time; time.sleep(0.3){ADD}") == "failed"


def test_a_program_cannot_read_the_data_set_of_its_tests(run, tmp_path):
    data = tmp_path / "train.jsonl"
    data.write_text(TESTS)
    data.chmod(0o644)
    tmp_path.chmod(0o755)
    assert run(f"open({str(data)!r}).read(){ADD}") == "failed"


KEY = """
import ctypes, platform
number = {{'x86_64': 248, 'aarch64': 217}}[platform.machine()]
assert ctypes.CDLL(None).syscall(number, b'user', b'embodyflow-test', b'secret', 6, -{keyring}) == -1
"""


@pytest.mark.parametrize("keyring", [3, 4], ids=["session", "user"])
def test_a_program_cannot_leave_a_key_to_the_next_one(keyring, run):
    assert run(KEY.format(keyring=keyring) + ADD) == "passed"


REPLACED = {
    "exec": f"import builtins\nbuiltins.exec = print{ADD.replace('+', '-')}",
    "compile": f"import builtins\nbuiltins.compile = lambda *a, **k: (lambda: 0).__code__{ADD.replace('+', '-')}",
}


@pytest.mark.parametrize("program", REPLACED.values(), ids=REPLACED)
def test_a_program_that_replaces_what_runs_its_tests_fails(program, run):
    assert run(program) == "failed"


@pytest.fixture
def in_the_guard(tmp_path):
    """Return a function that runs code in the guard beside another process of the same user."""

    def run_code(code):
        script = (
            "import os, subprocess, sys\n"
            "from embodyflow.rewards.sandbox.kernel_guard import confine\n"
            "victim = subprocess.Popen(['/bin/sleep', '60'], env={'SECRET': 'x'}).pid\n"
            f"try:\n    if os.fork() == 0:\n        confine()\n        try:\n            {code}\n"
            "        except OSError:\n            os._exit(3)\n        os._exit(0)\n"
            "    _, status = os.wait()\n    print(os.waitstatus_to_exitcode(status))\n"
            "finally:\n    os.kill(victim, 9)\n"
        )
        os.chmod(tmp_path, 0o777)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        result = subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
        )
        return result.stdout.strip() or result.stderr

    return run_code


@pytest.mark.parametrize(
    ("code", "refused"),
    [
        ("open('own', 'w').close()", False),
        ("import threading; t = threading.Thread(target=print); t.start(); t.join()", False),
        ("import decimal, sqlite3", False),
        ("os.kill(victim, 9)", True),
        ("open(f'/proc/{victim}/environ').read()", True),
        ("open(f'/proc/{os.getppid()}/cmdline').read()", True),
        ("open('/tmp/embodyflow-outside', 'w')", True),
        ("open('/etc/hostname').read()", True),
        ("os.chmod('/tmp', 0o777)", True),
        ("os.fork()", True),
        ("import socket; socket.socket()", True),
        ("import resource; resource.prlimit(victim, resource.RLIMIT_NOFILE, (1, 1))", True),
        ("import fcntl; fcntl.fcntl(0, fcntl.F_SETOWN, victim)", True),
    ],
)
def test_the_guard_refuses_what_reaches_beyond_the_program(code, refused, in_the_guard):
    assert in_the_guard(code) == ("3" if refused else "0")


def test_auto_refuses_to_start_without_namespaces(monkeypatch):
    def forbid(isolation):
        return "unshare: Operation not permitted"

    monkeypatch.setattr(sandbox, "_why_impossible", forbid)
    choose = sandbox.choose_isolation.__wrapped__
    with pytest.raises(ConfigError, match=r"^isolation=auto: .*bubblewrap.*isolation=guard") as refused:
        choose("auto")
    assert "\n" not in str(refused.value)
    with pytest.raises(ConfigError, match=r"^isolation=namespaces: "):
        choose("namespaces")


def test_auto_prefers_bubblewrap_and_never_chooses_the_guard(monkeypatch):
    permitted = {"bubblewrap", "namespaces", "guard"}
    monkeypatch.setattr(sandbox, "_why_impossible", lambda level: None if level in permitted else "no")
    choose = sandbox.choose_isolation.__wrapped__
    assert choose("auto") == "bubblewrap"
    permitted.remove("bubblewrap")
    assert choose("auto") == "namespaces"
    assert choose("guard") == "guard"


def test_the_guard_is_reported():
    function = build_reward_function(CodeConfig(isolation="guard"))
    assert function(Sample(1, "?", f"```python{ADD}```", TESTS, "code", 3, True)).parts["guarded"] == 1.0


def test_the_last_block_of_a_response_is_scored():
    function = build_reward_function(CodeConfig())
    good, bad = f"```python{ADD}```", "```py\ndef add(a, b):\n    return 0\n```"

    def score(response, tests=TESTS):
        return function(Sample(1, "?", response, tests, "code", 3, True))

    assert score(f"First {bad}, then\n{good}").reward == 1.0
    assert score(f"First {good}, then\n{bad}").reward == 0.0
    assert score(ADD).parts == {"answered": 0.0, "timed_out": 0.0, "undecided": 0.0}
    assert score(good, "if __name__ == '__main__':\n    assert add(1, 2) == 4").reward == 0.0
    with pytest.raises(ValueError, match="ground_truth is not valid Python"):
        score(good, "assert add(")


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("```bash\npip install x\n```\nthen\n```python\na = 1\n```", "a = 1\n"),
        ("```python\na = 1\n```\nprints\n```text\n1\n```\nor\n```text\n2\n```\n", "a = 1\n"),
        ("```python\na = 1\n```\nprints\n```\n1\n```", "a = 1\n"),
        ("```Python\na = 1\n```", "a = 1\n"),
        ("```python3\na = 1\n```", "a = 1\n"),
        ("```python title=x\na = 1\n```", "a = 1\n"),
        ("So\r\n```python\r\na = 1\r\n```\r\nBye", "a = 1\r\n"),
        ("````python\na = 1\n````", "a = 1\n"),
        ("```\na = 1\n```\n ```\na = 2\n ```", "a = 2\n"),
        ("```py\na = '```'\nb = 2\n```", "a = '```'\nb = 2\n"),
        ("```python\n```", ""),
        ("```bash\npip install x\n```\nand no more", None),
        ("```python\na = 1", None),
    ],
)
def test_the_program_is_the_last_block_of_python(response, program):
    assert extract_program(response) == program
