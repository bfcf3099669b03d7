"""The number of rollout workers in a run without Ray: decided once, recorded first, and without effect on weights."""

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from counting_run import iterate, leave_flows
from streamed_run import ITERATIONS, GroupRanks, config_of, open_stream, train

from embodyflow.config.language import LanguageConfig
from embodyflow.data.streaming.swaps import Swap
from embodyflow.data.streaming.tickets import Ticket
from embodyflow.orchestration.run import recovery, training
from embodyflow.orchestration.run.scaling import autoscaling
from embodyflow.orchestration.run.scaling.autoscaling import Autoscaling
from embodyflow.orchestration.run.scaling.scaling import ITERATION, ROLLOUT_IDLE, TRAINER_WAIT
from embodyflow.record.run_folder import RunFolder
from embodyflow.workers.calls import NodeResult

SETTINGS = ("rollout.autoscale.max_workers=3", "rollout.autoscale.patience=1", "rollout.groups_in_flight=1")
MORE = {ITERATION: 10.0, TRAINER_WAIT: 9.0, ROLLOUT_IDLE: 0.0}
FEWER = {ITERATION: 10.0, TRAINER_WAIT: 0.0, ROLLOUT_IDLE: 0.95}


class ScaledRanks(GroupRanks):
    """Ranks whose number changes; none may play a group that it cannot end."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.numbers: list[int] = []

    async def resize_rollouts(self, number: int) -> None:
        await asyncio.sleep(0.001)
        self.num_rollout_workers = number
        self.numbers.append(number)

    async def play_group(
        self, rank: int, node_id: str, ticket: Ticket, folder: Path, swaps: tuple[Swap, ...] | None = None
    ) -> NodeResult:
        assert rank < self.num_rollout_workers
        played = await super().play_group(rank, node_id, ticket, folder, swaps)
        assert rank < self.num_rollout_workers, "the worker has ended while it played"
        return played


async def nothing() -> None:
    pass


def open_scaled(folder: RunFolder, config: LanguageConfig, seed: int, waits: Callable[[int], dict[str, float]]) -> Any:
    """Open a streamed run whose iterations wait as a function of their index says."""
    run = open_stream(folder, config, seed)
    run.session, run.waits = ScaledRanks(seed), waits
    run.rollouts._session = run.session
    settings = config.rollout.autoscale
    assert settings is not None
    run.scaling = Autoscaling(settings, config.rollout.num_workers, run.session, run.stages, run.rollouts, nothing)
    return run


@pytest.fixture(autouse=True)
def outside_of_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    async def iterate_and_wait(run: Any, index: int) -> None:
        await iterate(run, index)
        run.scaling.end(index, run.waits(index) if hasattr(run, "waits") else {})

    leave_flows(monkeypatch)
    monkeypatch.setattr(training, "run_iteration", iterate_and_wait)
    monkeypatch.setattr(autoscaling, "get_run_logger", recovery.get_run_logger)


def recorded(run: Any) -> dict[int, int]:
    """Return the number of each iteration, which is recorded once."""
    lines = [json.loads(line.partition("\t")[0]) for line in run.folder.ledger_path.open()]
    workers = [(line["iteration"], line["number"]) for line in lines if line["kind"] == "workers"]
    assert len({iteration for iteration, _ in workers}) == len(workers), "a number is decided once"
    return dict(workers)


def fixed(root: Path) -> str:
    config = config_of(root, "fixed")
    return asyncio.run(train(open_stream(RunFolder.create(config), config, 0), None))


def randomly(seed: int) -> Callable[[int], dict[str, float]]:
    return lambda index: random.Random(f"{seed} {index}").choice([MORE, FEWER])


def assert_within_bounds(numbers: dict[int, int]) -> None:
    assert sorted(numbers) == list(range(1, ITERATIONS + 1))
    assert set(numbers.values()) <= {1, 2, 3}
    assert all(abs(numbers[each + 1] - numbers[each]) <= 1 for each in range(1, ITERATIONS))


def test_the_number_follows_the_waits(tmp_path: Path) -> None:
    config = config_of(tmp_path, "more", *SETTINGS)
    run = open_scaled(RunFolder.create(config), config, 0, lambda index: MORE)
    digest = asyncio.run(train(run, None))
    numbers = recorded(run)
    assert_within_bounds(numbers)
    assert numbers[1] == 2 and numbers[ITERATIONS] == 3
    assert digest == fixed(tmp_path), "weights do not depend on the number"


@pytest.mark.parametrize("seed", range(4))
def test_failures_change_neither_numbers_nor_weights(tmp_path: Path, seed: int) -> None:
    config = config_of(tmp_path, "disturbed", *SETTINGS)
    run = open_scaled(RunFolder.create(config), config, seed, randomly(seed))
    run.session.fails_at = {2, 9, 16}
    assert asyncio.run(train(run, None)) == fixed(tmp_path)
    assert_within_bounds(recorded(run))


@pytest.mark.parametrize("after", range(1, ITERATIONS - 1))
def test_a_new_process_repeats_the_numbers_of_the_ledger(tmp_path: Path, after: int) -> None:
    config = config_of(tmp_path, "killed", *SETTINGS)
    folder = RunFolder.create(config)
    killed = open_scaled(folder, config, 0, lambda index: MORE)

    async def until_killed() -> None:
        training_run = asyncio.create_task(train(killed, None))
        while killed.turns.last_finished < after:
            await asyncio.sleep(0)
        training_run.cancel()
        await asyncio.gather(training_run, return_exceptions=True)
        await killed.rollouts.stop()
        await killed.stages.drain()

    asyncio.run(until_killed())
    before = recorded(killed)
    run = open_scaled(folder, config, 1, lambda index: FEWER)

    async def in_a_new_process() -> tuple[int, str]:
        last = await recovery.restore(run)
        return last, await train(run, last)

    last, digest = asyncio.run(in_a_new_process())
    assert digest == fixed(tmp_path)
    numbers = recorded(run)
    assert_within_bounds(numbers)
    assert {index: numbers[index] for index in before} == before
    assert run.session.numbers[0] == numbers.get(last + 1, 2), "the first workers are those of the record"


def test_the_record_is_there_before_a_worker_starts_or_ends(tmp_path: Path) -> None:
    config = config_of(tmp_path, "first", *SETTINGS)
    run = open_scaled(RunFolder.create(config), config, 0, randomly(1))
    resize = run.session.resize_rollouts

    async def checked(number: int) -> None:
        assert list(recorded(run).values())[-1] == number
        await resize(number)

    run.session.resize_rollouts = checked
    asyncio.run(train(run, None))
    assert run.session.numbers, "the number has changed"


def test_waits_for_rows_that_an_earlier_process_made_do_not_count(tmp_path: Path) -> None:
    config = config_of(tmp_path, "recalled", *SETTINGS)
    run = open_scaled(RunFolder.create(config), config, 0, randomly(0))

    async def decide() -> list[int]:
        await run.stages.record_num_workers(1, 2)
        await run.rollouts.start(0)
        numbers = [await run.scaling.begin(1)]
        run.scaling.end(1, MORE)
        numbers.append(await run.scaling.begin(2))
        run.scaling.end(2, MORE)
        numbers.append(await run.scaling.begin(3))
        run.scaling.end(3, MORE)  # it has waited for a worker to start
        numbers.append(await run.scaling.begin(4))
        await run.rollouts.stop()
        return numbers

    assert asyncio.run(decide()) == [2, 2, 3, 3]
