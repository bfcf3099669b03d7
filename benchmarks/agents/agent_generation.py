"""Generation for agents compared: episodes that run freely, and episodes in lockstep.

Run ``python -m benchmarks.agents.agent_generation`` or ``python benchmarks/agents/agent_generation.py`` (about three
minutes). 64 episodes of 4 turns run side by side on a Qwen3 with 0.6 million random weights in float32, on one CPU
thread. A turn has 16 tokens. After each of the first three, a tool waits for 50 ms to 2 s, log-normally with a median
of 0.3 s, and answers with 12 tokens. Both contenders use the same engine, prompts and waits, and take turns. In the
workload *instant*, tools do not wait.

``idle`` is the share of the time in which an episode waits for the model and no pass is being computed. ``of_bound``
compares the time with the bound by the slowest resource: the longest chain of one episode's waits and its own passes,
or the passes that all episodes need without waits. Figures are medians over the rounds.
"""

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.commands import ROOT
from benchmarks.language.generation import VOCAB_SIZE, save_model
from benchmarks.report import write_report

NUM_TURNS, TURN_TOKENS, MESSAGE_TOKENS = 4, 16, 12
MEDIAN, SIGMA, SHORTEST, LONGEST = 0.3, 0.92, 0.05, 2.0  # seconds of a tool's wait; its logarithm is normal
GROUP_SIZE = 8  # episodes with the same prompt
RESULTS = ROOT / "benchmarks" / "results" / "agent_generation.json"

WAITS = {"instant": 0.0, "waiting": 1.0}
"""Factor of the tools' waits in each workload."""


def wait_of(*place: Any) -> float:
    """Return the seconds that the tool waits at a place."""
    return min(max(random.Random(repr(place)).lognormvariate(0, SIGMA) * MEDIAN, SHORTEST), LONGEST)


class Clock:
    """Intervals in which the engine computed, and in which an episode waited for the model."""

    def __init__(self) -> None:
        self.busy: list[tuple[float, float]] = []
        self.asked: list[tuple[float, float]] = []

    def watch(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its time counted as busy."""

        def watched(*arguments: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                self.busy.append((start, time.perf_counter()))

        return watched

    def idle_seconds(self) -> float:
        """Return how long an episode waited for the model while nothing was computed."""
        edges = [(place, change, 0) for start, end in self.asked for place, change in ((start, 1), (end, -1))]
        edges += [(place, 0, change) for start, end in self.busy for place, change in ((start, 1), (end, -1))]
        idle, num_asked, num_busy, last = 0.0, 0, 0, 0.0
        for place, asked, busy in sorted(edges):
            if num_asked and not num_busy:
                idle += place - last
            num_asked, num_busy, last = num_asked + asked, num_busy + busy, place
        return idle


async def converse(conductor: Any, clock: Clock, number: int, episode: int, factor: float) -> int:
    """Play one episode; return the number of sampled tokens."""
    rng = random.Random(episode // GROUP_SIZE)
    tokens, sampled = tuple(rng.randrange(VOCAB_SIZE) for _ in range(MESSAGE_TOKENS)), 0
    for turn in range(NUM_TURNS):
        start = time.perf_counter()
        completion = await conductor.generate(number, tokens, TURN_TOKENS, episode * NUM_TURNS + turn)
        clock.asked.append((start, time.perf_counter()))
        sampled += len(completion.token_ids)
        if turn + 1 < NUM_TURNS:
            await asyncio.sleep(factor * wait_of(episode, turn))
        rng = random.Random(repr((episode, turn)))
        tokens = (*tokens, *completion.token_ids, *(rng.randrange(VOCAB_SIZE) for _ in range(MESSAGE_TOKENS)))
    return sampled


def play(engine: Any, kind: Any, episodes: Sequence[int], factor: float) -> dict[str, float]:
    """Play episodes side by side with a conductor; return its figures."""
    from embodyflow.generation.interface import Sampling

    clock, conductor = Clock(), kind(engine, Sampling(TURN_TOKENS))
    with ExitStack() as stack:
        watch(engine, clock, stack)
        start = time.perf_counter()
        conductor.run(
            [partial(converse, conductor, clock, number, episode, factor) for number, episode in enumerate(episodes)]
        )
        seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "busy_seconds": sum(end - start for start, end in clock.busy),
        "idle": clock.idle_seconds() / seconds,
    }


def watch(engine: Any, clock: Clock, stack: ExitStack) -> None:
    """Count the passes of both ways to generate as busy."""
    from unittest.mock import patch

    from embodyflow.generation.conversations.slot_conversations import SlotConversations

    stack.enter_context(patch.object(engine, "_start", clock.watch(engine._start)))
    stack.enter_context(patch.object(engine, "_step", clock.watch(engine._step)))
    step = SlotConversations.step
    stack.enter_context(patch.object(SlotConversations, "step", clock.watch(step)))


def compare_conductors(num_episodes: int, num_rounds: int) -> list[dict[str, Any]]:
    """Play the workloads freely and in lockstep, in turns."""
    import torch

    from embodyflow.agents.conducting.free_running import FreeRunning
    from embodyflow.agents.conducting.lockstep import Lockstep
    from embodyflow.config.generation import HFConfig
    from embodyflow.generation.transformers_engine.engine import HFEngine

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder))
        engine = HFEngine(HFConfig(max_num_seqs=num_episodes), Path(folder), "cpu")
    if not engine.is_batch_invariant():
        raise SystemExit("this device is not batch-invariant, so there is nothing to compare")
    kinds, workloads = {"free running": FreeRunning, "lockstep": Lockstep}, []
    instant = 0.0
    for workload, factor in WAITS.items():
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in kinds}
        for number in range(num_rounds + 1):
            episodes = range(number * num_episodes, (number + 1) * num_episodes)
            for name, kind in kinds.items():
                rounds[name].append(
                    play(engine, kind, episodes, factor) | {"chain": chain_of(engine, episodes, factor)}
                )
        figures = {name: medians(each[1:]) for name, each in rounds.items()}
        instant = instant or figures["free running"]["busy_seconds"]
        for each in figures.values():
            each["episodes_per_second"] = num_episodes / each["seconds"]
            each["of_bound"] = max(each["chain"], instant) / each["seconds"]
        workloads.append({"workload": f"{num_episodes} episodes, {workload}", "contenders": figures})
        print(f"\n{workload}\n  {'':16}{'episodes/s':>12}{'idle':>8}{'of bound':>10}")
        for name, each in figures.items():
            print(f"  {name:16}{each['episodes_per_second']:12.1f}{each['idle']:8.1%}{each['of_bound']:10.2f}")
    return workloads


def chain_of(engine: Any, episodes: Sequence[int], factor: float) -> float:
    """Return the seconds of the longest chain: one episode's waits, and its passes without other episodes."""
    from embodyflow.agents.conducting.free_running import FreeRunning

    waits = max(sum(factor * wait_of(episode, turn) for turn in range(NUM_TURNS - 1)) for episode in episodes)
    return waits + play(engine, FreeRunning, episodes[:1], 0.0)["seconds"]


def medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    workloads = compare_conductors(arguments.episodes, arguments.rounds)
    write_report(arguments.output, ("torch", "transformers"), workloads, rounds=arguments.rounds)


if __name__ == "__main__":
    main()
