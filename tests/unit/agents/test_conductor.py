"""Conductors: what episodes get does not depend on how long tools take."""

import asyncio
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodyflow.agents.conducting.lockstep import Lockstep
from embodyflow.generation.interface import Completion, Sampling

SAMPLING = Sampling(max_tokens=8)


class EchoEngine:
    """Ends the shortest request at each step, and notes which requests were open at it."""

    def __init__(self) -> None:
        self.steps: list[list[tuple[int, ...]]] = []

    def serve(self, arrivals, sampling) -> Iterator[tuple[int, Completion]]:
        active = {}
        while True:
            active |= dict(arrivals.take(idle=not active))
            if not active:
                return
            self.steps.append(sorted(request.prompt_ids for request in active.values()))
            position = min(active, key=lambda each: (len(active[each].prompt_ids), each))
            yield position, Completion(active.pop(position).prompt_ids, (), "stop", 1)


async def turns(conductor, episode, number, pauses):
    prompt = (episode,)
    for turn in range(number):
        await asyncio.sleep(next(pauses))
        completion = await conductor.generate(episode, (*prompt, turn), 8, seed=turn)
        prompt = completion.token_ids
    return prompt


def play(numbers, seed):
    engine, rng = EchoEngine(), random.Random(seed)
    conductor = Lockstep(engine, SAMPLING)
    pauses = iter(lambda: rng.choice([0, 0, 0.001]), None)
    results = conductor.run(
        [lambda e=e, n=n: turns(conductor, e, n, pauses) for e, n in enumerate(numbers)],
    )
    return results, engine.steps


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=5), st.integers(0, 1000))
def test_steps_do_not_depend_on_the_pace_of_tools(numbers, seed):
    results, steps = play(numbers, seed)

    assert results == [(episode, *range(number)) for episode, number in enumerate(numbers)]
    assert steps == play(numbers, seed + 1)[1]


def test_an_exception_of_a_workflow_ends_the_rollout_while_others_wait_for_tools():
    conductor, ended = Lockstep(EchoEngine(), SAMPLING), []

    async def waits():
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("waits")

    async def fails():
        await asyncio.sleep(0.01)
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        conductor.run([waits, fails])
    assert ended == ["waits"]


def test_no_workflow_no_step():
    engine = EchoEngine()

    assert Lockstep(engine, SAMPLING).run([]) == [] and engine.steps == []
