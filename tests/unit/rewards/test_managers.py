"""Managers: equal scores from all, errors that name the sample, and no process left running."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from support_path import SUPPORT_PATH
from waiting import eventually

from embodyflow.errors import ConfigError, RewardError
from embodyflow.rewards.interface import Sample, Score
from embodyflow.rewards.reward_config import CustomConfig, RewardConfig
from embodyflow.rewards.reward_registry import build_reward_manager

FUNCTIONS = "faulty_rewards"
HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def samples(*responses):
    return [Sample(100 + i, "?", response, "1", "test", 3, True) for i, response in enumerate(responses)]


def manager(name, function="follow", kwargs=None, **settings):
    chosen = CustomConfig(function=f"{FUNCTIONS}:{function}", kwargs=kwargs or {})
    return build_reward_manager(RewardConfig(function=chosen, manager={"name": name, **settings}))


@contextmanager
def nothing_left_running():
    """Check that every process started in the block has ended."""
    before = set(psutil.Process().children(recursive=True))
    yield
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.fixture(scope="module")
def marks(tmp_path_factory):
    return tmp_path_factory.mktemp("marks")


@pytest.fixture(scope="module")
def pool(marks):
    """Build a pool of two processes with a short time limit, which must still work after each test's error."""
    with nothing_left_running():
        pool = manager("parallel", kwargs={"marks": str(marks)}, num_workers=2, time_limit=0.5, memory_gb=3.0)
        yield pool
        pool.close()


def strays(marks):
    """Return, for each stray process, True if it still runs; a zombie does not count."""
    return [_runs(int(mark.stem)) for mark in marks.glob("*.stray")]


def _runs(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("name", ["naive", "batch"])
def test_the_scores_come_in_the_order_of_the_samples(name):
    function = "follow_all" if name == "batch" else "follow"
    with_parts = manager(name, function).score(samples("score 1", "score -2", "score 0.5"))
    assert with_parts == [
        Score(1.0, True, {"length": 1}),
        Score(-2.0, False, {"length": 2}),
        Score(0.5, True, {"length": 3}),
    ]
    assert manager(name, function).score([]) == []


def test_a_pool_gives_the_scores_of_a_single_process(pool):
    orders = samples(*(f"score {number}" for number in range(-20, 20)))
    assert pool.score(orders) == manager("naive").score(orders)
    assert pool.score([]) == []
    assert len(psutil.Process().children()) >= 2


BAD = {
    "raise": "the reward function raised ZeroDivisionError: division by zero",
    "nan": "the reward function returned reward=nan; allowed are finite numbers of float32",
    "nan_part": "the reward function returned style=inf; allowed are finite numbers of float32",
    "too_large": "the reward function returned reward=1e+39; allowed are finite numbers of float32",
    "huge": f"the reward function returned reward=1{'0' * 76}...; allowed are finite numbers of float32",
    "number": "the reward function returned 1.0; allowed is a Score",
    "none": "the reward function returned None; allowed is a Score",
    "correct": "the reward function returned correct=1; allowed is a bool",
}


@pytest.mark.parametrize(("order", "reason"), BAD.items())
def test_a_bad_score_is_an_error_that_names_its_sample(order, reason, pool):
    for manager_ in (manager("naive"), pool):
        with pytest.raises(RewardError) as caught:
            manager_.score(samples("score 1", order, "score 2"))
        assert str(caught.value) == f"reward of row 101: {reason}" and caught.value.uid == 101


@pytest.mark.parametrize(("name", "function"), [("naive", "spend"), ("batch", "spend_all")])
def test_what_a_function_changes_reaches_neither_siblings_nor_the_prompt(name, function):
    """Siblings share the row, the messages and the ground truth of their prompt."""
    shared = {"row": {"tests": [1, 2]}, "messages": [{"role": "user", "content": "?"}], "ground_truth": ["1"]}
    before, siblings = deepcopy(shared), [replace(sample, **shared) for sample in samples("a", "b")]
    assert [score.reward for score in manager(name, function).score(siblings)] == [4.0, 4.0]
    assert shared == before


@pytest.mark.parametrize(("name", "function"), [("naive", "follow"), ("batch", "follow_all")])
def test_a_function_that_exits_does_not_end_the_worker(name, function):
    with pytest.raises(RewardError, match=r"the reward function raised SystemExit"):
        manager(name, function).score(samples("exit"))


def test_a_batch_names_the_sample_of_a_bad_score_and_the_first_of_a_bad_batch():
    with pytest.raises(RewardError, match=r"^reward of row 102: the reward function returned reward=nan"):
        manager("batch", "follow_all").score(samples("score 1", "score 2", "nan"))
    with pytest.raises(RewardError, match=r"^reward of row 100: .* returned 1 scores for 2 samples$"):
        manager("batch", "drop_the_last").score(samples("score 1", "score 2"))
    with pytest.raises(RewardError, match=r"^reward of row 100: .* raised ZeroDivisionError on 2 samples"):
        manager("batch", "follow_all").score(samples("score 1", "raise"))


FATAL = {
    "hang_in_native_code": r"its process did not answer within time_limit=0.5 s, 2 times in a row",
    "die": r"its process died, exit code -9, 2 times in a row",
    "exit": r"the reward function raised SystemExit: 0",
    "exit_at_once": r"its process died, exit code 3, 2 times in a row",
    "eat_memory": r"the reward function raised MemoryError: ",
}


@pytest.mark.parametrize(("order", "reason"), FATAL.items())
def test_a_function_that_ends_its_process_is_an_error_that_names_its_sample(order, reason, pool):
    with pytest.raises(RewardError, match=rf"^reward of row 101: {reason}$"):
        pool.score(samples("score 1", order, "score 2"))
    assert [score.reward for score in pool.score(samples("score 1", "score 2"))] == [1.0, 2.0]


def test_a_process_that_dies_costs_a_retry_and_no_sample(pool):
    orders = samples("score 1", "die_once 2", *(f"score {number}" for number in range(3, 10)))
    assert [score.reward for score in pool.score(orders)] == list(range(1, 10))


def test_a_function_that_forks_scores_once_and_its_processes_end_with_its_sample(pool, marks):
    orders, before = samples("fork 1", "score 2", "stray 0", "fork 4", "score 5"), strays(marks)
    assert [score.reward for score in pool.score(orders)] == [1.0, 2.0, 1.0, 4.0, 5.0]
    assert strays(marks) == [*before, False] and not any(before)
    workers = [child for child in psutil.Process().children() if "pool_worker" in " ".join(child.cmdline())]
    assert len(workers) == 2 and not [child for worker in workers for child in worker.children()]


def test_processes_that_a_hanging_function_started_end_with_its_process(pool, marks):
    before = strays(marks)
    with pytest.raises(RewardError, match="did not answer"):
        pool.score(samples("stray 1000"))
    assert len(strays(marks)) > len(before)
    assert eventually(lambda: not any(strays(marks)))  # the kernel takes a moment to end killed processes


def test_a_sample_that_hangs_may_count_as_incorrect():
    with nothing_left_running():
        pool = manager("parallel", num_workers=1, time_limit=0.3, retries=0, overdue="incorrect", memory_gb=3.0)
        scores = pool.score(samples("score 1", "hang", "score 2"))
        assert [score.reward for score in scores] == [1, 0, 2]
        assert [score.parts["timed_out"] for score in scores] == [0, 1, 0]
        assert not scores[1].correct
        with pytest.raises(RewardError, match="raised ZeroDivisionError"):  # other failures are still errors
            pool.score(samples("raise"))
        pool.close()
        pool.close()


def test_the_processes_end_with_their_parent_even_while_a_function_hangs(tmp_path):
    code = (
        "import sys; from test_managers import manager, samples;"
        "pool = manager('parallel', kwargs={'marks': sys.argv[1]}, num_workers=1, time_limit=100, memory_gb=3.0);"
        "pool.score(samples('stray 1000'))"
    )
    environ = os.environ | {"PYTHONPATH": os.pathsep.join((SUPPORT_PATH, str(HERE)))}
    parent = psutil.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, env=environ)
    assert eventually(lambda: any(strays(tmp_path)), seconds=30.0)
    [worker] = parent.children()
    parent.kill()
    parent.wait()
    assert eventually(lambda: not _runs(worker.pid) and not any(strays(tmp_path)))


def test_threads_can_share_a_pool(pool):
    with ThreadPoolExecutor(4) as threads:
        scores = threads.map(lambda n: pool.score(samples(f"score {n}", f"score {-n}")), range(8))
    assert [[score.reward for score in pair] for pair in scores] == [[n, -n] for n in range(8)]


def test_a_function_that_cannot_be_built_is_a_configuration_error():
    pool = manager("parallel", function="follow", num_workers=1, time_limit=1.0, memory_gb=None)
    pool._function = CustomConfig.model_construct(function="faulty_rewards:gone", kwargs={})
    with nothing_left_running(), pytest.raises(ConfigError, match=r"before the first sample$") as caught:
        pool.score(samples("score 1"))
    assert "has no attribute 'gone'" in str(caught.value)
    pool.close()
