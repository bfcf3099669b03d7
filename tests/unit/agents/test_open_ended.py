"""Groups of episodes that join the others at any time, from any thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest
import torch
from language_models import save_model
from waiting import eventually

from embodyflow.agents.conducting import open_ended
from embodyflow.agents.conducting.open_ended import OpenEnded
from embodyflow.config.generation import HFConfig
from embodyflow.generation.interface import Completion, Sampling
from embodyflow.generation.transformers_engine.engine import HFEngine

SAMPLING = Sampling(6, stop_token_ids=(3, 4))
Turns = list[Completion]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> HFEngine:
    torch.set_num_threads(1)  # as rollout workers do
    return HFEngine(HFConfig(max_num_seqs=3), save_model(tmp_path_factory.mktemp("model"), tied=True), "cpu")


@pytest.fixture
def conductor(engine: HFEngine) -> Iterator[OpenEnded[Turns]]:
    conductor = OpenEnded[Turns](engine, SAMPLING, 4)
    yield conductor
    conductor.close()


async def converse(conductor: OpenEnded[Turns], seed: int, pause: float, number: int) -> Turns:
    tokens, turns = (5, 6, 7), Turns()
    for turn in range(3):
        turns.append(await conductor.generate(number, tokens, 6, seed + turn))
        await asyncio.sleep(pause)
        tokens = (*tokens, *turns[-1].token_ids, 8)
    return turns


def play(conductor: OpenEnded[Turns], seed: int, pause: float = 0.0, timeout: float | None = None) -> list[Turns]:
    return conductor.play([lambda n, s=s: converse(conductor, s, pause, n) for s in (seed, seed + 50)], timeout)  # type: ignore[misc]


def plays(conductor: OpenEnded[Turns]) -> bool:
    """Wait until the two episodes of a group have begun, which takes a busy machine longer; return True then."""
    return eventually(lambda: conductor._num_alive == 2)


def test_a_groups_rows_do_not_depend_on_the_groups_beside_it(conductor: OpenEnded[Turns]) -> None:
    alone = [play(conductor, seed) for seed in (0, 100, 200)]
    with ThreadPoolExecutor() as threads:
        playing = [threads.submit(play, conductor, seed, pause) for seed, pause in ((0, 0.05), (100, 0.0), (200, 0.01))]
        assert [each.result() for each in playing] == alone
    assert alone[0] != alone[1]


def test_a_quick_group_does_not_wait_for_a_slow_one(conductor: OpenEnded[Turns]) -> None:
    with ThreadPoolExecutor() as threads:
        slow = threads.submit(play, conductor, 0, 60.0)
        assert plays(conductor)
        play(conductor, 100)
        assert not slow.done()
        conductor.close()
        with pytest.raises(RuntimeError, match="was closed"):
            slow.result()


def test_the_failure_of_a_group_leaves_the_others_alone(conductor: OpenEnded[Turns]) -> None:
    ended = threading.Event()

    async def fails(number: int) -> Turns:
        await conductor.generate(number, (5, 6), 4, 0)
        raise KeyError("a bug")

    async def waits(number: int) -> Turns:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return []

    with ThreadPoolExecutor() as threads:
        other = threads.submit(play, conductor, 0, 0.05)
        with pytest.raises(KeyError, match="a bug"):
            conductor.play([waits, fails])
        assert ended.is_set() and len(other.result()) == 2


def test_a_group_that_takes_too_long_is_cancelled(conductor: OpenEnded[Turns]) -> None:
    with pytest.raises(TimeoutError):
        play(conductor, 0, 60.0, timeout=0.05)
    assert len(play(conductor, 0)) == 2


def test_closing_ends_groups_and_frees_the_engine(engine: HFEngine) -> None:
    conductor = OpenEnded[Turns](engine, SAMPLING, 4)
    with ThreadPoolExecutor() as threads:
        playing = threads.submit(play, conductor, 0, 60.0)
        assert plays(conductor)
        conductor.close()
        with pytest.raises(RuntimeError, match="was closed"):
            playing.result()
    with pytest.raises(RuntimeError, match="is closed"):
        play(conductor, 0)
    engine.score([((5, 6), (7,))])  # refused while conversations are open


def test_an_error_of_the_engine_reaches_every_group(engine: HFEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    conductor = OpenEnded[Turns](engine, SAMPLING, 4)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(play, conductor, 0, 60.0)
        assert plays(conductor) and conductor._conversations is not None
        monkeypatch.setattr(conductor._conversations, "step", lambda: 1 / 0)
        for group in (waiting, threads.submit(play, conductor, 100)):
            with pytest.raises(ZeroDivisionError):
                group.result()
    conductor.close()


def test_a_group_that_comes_while_the_conductor_closes_ends_with_it(
    engine: HFEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes after the other groups were cancelled and before the loop is closed."""
    conductor, late = OpenEnded[Turns](engine, SAMPLING, 4), list[Future[list[Turns]]]()
    cancel = open_ended._cancel_all

    async def cancel_all() -> None:
        await cancel()
        late.append(threads.submit(play, conductor, 0, 0.0, 20.0))
        wait(late, 1.0)

    monkeypatch.setattr(open_ended, "_cancel_all", cancel_all)
    with ThreadPoolExecutor() as threads:
        conductor.close()
        with pytest.raises(RuntimeError, match="is closed"):
            late[0].result()
