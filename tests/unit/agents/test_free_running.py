"""Episodes on a batch-invariant engine: none waits for another one's tool."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from language_models import save_model

from embodyflow.agents.conducting.conductors import build_conductor
from embodyflow.agents.conducting.free_running import FreeRunning
from embodyflow.agents.conducting.idle_loop import MAX_POLLS, IdleLoop
from embodyflow.agents.conducting.lockstep import Lockstep
from embodyflow.config.generation import HFConfig
from embodyflow.generation.interface import Completion, Sampling
from embodyflow.generation.transformers_engine.engine import HFEngine

SAMPLING = Sampling(6, stop_token_ids=(3, 4))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> HFEngine:
    return HFEngine(HFConfig(max_num_seqs=3), save_model(tmp_path_factory.mktemp("model"), tied=True), "cpu")


async def play(
    conductor: FreeRunning, episode: int, num_turns: int, rng: random.Random, recorded: Sequence[Completion] = ()
) -> list[Completion]:
    """Play turns with a tool between them; those that an earlier attempt recorded are replayed."""
    tokens, turns = (5 + episode % 2, 6, 7), list[Completion]()
    for turn in range(num_turns):
        if turn < len(recorded):
            turns.append(await conductor.replay(episode, tokens, 6, turn, recorded[turn]))
        else:
            turns.append(await conductor.generate(episode, tokens, 6, turn))
        await asyncio.sleep(rng.choice([0, 0, 0.001, 0.004]))
        tokens = (*tokens, *turns[-1].token_ids, 8 + turn, 9)
    return turns


def play_all(
    engine: HFEngine, lengths: Sequence[int], seed: int, recorded: Sequence[Sequence[Completion]] | None = None
) -> list[list[Completion]]:
    conductor, rng = FreeRunning[list[Completion]](engine, SAMPLING), random.Random(seed)
    records = recorded or [()] * len(lengths)
    return conductor.run(
        [lambda e=e, n=n: play(conductor, e, n, rng, records[e]) for e, n in enumerate(lengths)]  # type: ignore[misc]
    )


@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=5), st.integers(0, 1000), st.data())
def test_neither_the_pace_of_tools_nor_an_interruption_changes_a_bit(
    engine: HFEngine, lengths: list[int], seed: int, data: st.DataObject
) -> None:
    expected = play_all(engine, lengths, seed)
    kept = [turns[: data.draw(st.integers(0, len(turns)))] for turns in expected]

    assert play_all(engine, lengths, seed + 1) == expected
    assert play_all(engine, lengths, seed + 2, kept) == expected


def test_an_episode_goes_on_while_another_waits_for_its_tool(engine: HFEngine) -> None:
    conductor, ended = FreeRunning[int](engine, SAMPLING), asyncio.Event()

    async def waits() -> int:
        await conductor.generate(0, (5, 6), 4, 0)
        await ended.wait()
        return len((await conductor.generate(0, (5, 6, 7), 4, 0)).token_ids)

    async def goes_on() -> int:
        turns = await play(conductor, 1, 3, random.Random(0))
        ended.set()
        return len(turns)

    assert conductor.run([waits, goes_on])[1] == 3


def test_an_exception_ends_the_rollout_while_others_wait_and_sample(engine: HFEngine) -> None:
    conductor, ended = FreeRunning[None](engine, SAMPLING), list[str]()

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("waits")

    async def samples() -> None:
        await play(conductor, 1, 9, random.Random(0))

    async def fails() -> None:
        await asyncio.sleep(0.01)
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        conductor.run([waits, samples, fails])
    assert ended == ["waits"]
    assert play_all(engine, [1], 0)  # the engine is free again


def test_an_episode_waits_for_one_turn_at_a_time(engine: HFEngine) -> None:
    conductor = FreeRunning[None](engine, SAMPLING)

    async def asks_twice() -> None:
        await asyncio.gather(*(conductor.generate(0, (5, 6), 4, seed) for seed in range(2)))

    with pytest.raises(RuntimeError, match="one turn of the model at a time"):
        conductor.run([asks_twice])


def test_the_engine_decides_about_the_conductor(engine: HFEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(build_conductor(engine, SAMPLING), FreeRunning)
    monkeypatch.setattr(engine, "is_batch_invariant", lambda: False)
    assert isinstance(build_conductor(engine, SAMPLING), Lockstep)


def test_the_loop_stops_before_it_would_wait() -> None:
    loop, seen = IdleLoop(), list[str]()

    async def works() -> None:
        for number in range(5):
            await asyncio.sleep(0)
            seen.append(str(number))
        await asyncio.to_thread(time.sleep, 0.02)
        seen.append("thread")
        await asyncio.sleep(60)

    task = loop.create_task(works())
    loop.run_until_idle()
    assert seen == list("01234")
    deadline = time.monotonic() + 10
    while "thread" not in seen and time.monotonic() < deadline:
        time.sleep(0.01)
        loop.run_until_idle()
    assert seen[-1] == "thread"
    started = time.monotonic()
    loop.run_until_idle()
    assert time.monotonic() - started < 5
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()


def test_the_loop_stops_although_something_is_always_ready() -> None:
    loop, polls = IdleLoop(), [0]

    async def polls_forever() -> None:
        while True:
            polls[0] += 1
            await asyncio.sleep(0)

    task = loop.create_task(polls_forever())
    loop.run_until_idle()
    assert 1 < polls[0] <= MAX_POLLS
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()
