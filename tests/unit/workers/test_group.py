"""How a group handles ranks that die or fail, with fake ranks and no processes."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from node_calls import call_of

from embodyflow.config import RunConfig
from embodyflow.config.run import GroupShape
from embodyflow.data.streaming.tickets import Ticket
from embodyflow.errors import NodeTimeoutError, ShardLostError, WorkerLostError
from embodyflow.workers import group as group_module
from embodyflow.workers import lost_actors
from embodyflow.workers.calls import GroupCall, NodeCall
from embodyflow.workers.group import WorkerGroup

CALL = call_of(iteration=1)
GROUP_CALL = GroupCall("rollout", Ticket(12, 0, 2), 0, "folder", {}, num_versions=3, stream=0, timeout=2.0)
OUT_OF_MEMORY = ray.exceptions.OutOfMemoryError("1 worker was killed due to the node running low on memory\nTop 10 …")


class Answer:
    """The answer of a rank: it can be awaited, and has a future."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._task = asyncio.ensure_future(work())

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.shield(self._task).__await__()  # the rank keeps working if the caller stops waiting

    def future(self) -> Future[Any]:
        answer: Future[Any] = Future()

        def settle(task: asyncio.Future[Any]) -> None:
            if error := task.exception():
                answer.set_exception(error)
            else:
                answer.set_result(task.result())

        self._task.add_done_callback(settle)
        return answer


class Rank:
    """A rank that does the same in every node.

    Args:
        pid: Process id.
        node: Function that it runs as a node.
        start: Function that it runs before it answers that it is ready.
    """

    def __init__(self, pid: int, node: Callable[[], Any] = lambda: "done", start: Callable[[], Any] = lambda: None):
        self.pid, self.num_nodes, self.has_started = pid, 0, False
        self.node, self.connected_to = "node", ""
        self._node, self._start = node, start
        self.shares_with = 0
        for method in (self._run_node, self._ready, self._node_id, self._hold_address, self._connect, self._invoke):
            setattr(self, method.__name__.removeprefix("_"), SimpleNamespace(remote=self._remote(method)))
        self._busy = asyncio.Lock()  # held by the calls that run one at a time
        self.run_compute_node = SimpleNamespace(remote=self._remote(self._compute))
        self.play_group = SimpleNamespace(remote=self._remote(self._compute))
        self.stacks = SimpleNamespace(remote=self._remote(self._begin))

    def _remote(self, method: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Answer]:
        return lambda *arguments: Answer(lambda: method(*arguments))

    async def _run_node(self, call: NodeCall) -> Any:
        async with self._busy:
            return await self._compute(call)

    async def _compute(self, call: NodeCall | GroupCall) -> Any:
        if not self.has_started:
            await self._begin()
        self.num_nodes += 1
        return await self._done(self._node)

    async def _ready(self) -> int:
        async with self._busy:
            return await self._begin()

    async def _begin(self) -> int:
        await self._done(self._start)
        self.has_started = True
        return self.pid

    async def _node_id(self) -> str:
        return self.node

    async def _hold_address(self, on_one_node: bool) -> str:
        return "loopback:1" if on_one_node else "node:1"

    async def _connect(self, address: str) -> None:
        self.connected_to = address

    async def _invoke(self, method: str, number: int) -> None:
        assert method == "resize"
        async with self._busy:
            self.shares_with = number

    async def _done(self, work: Callable[[], Any]) -> Any:
        result = work()
        return await result if asyncio.iscoroutine(result) else result


class Group(WorkerGroup):
    """A group that spawns the given fake ranks, for each rank one after the other."""

    def __init__(self, config: RunConfig, *ranks: list[Rank], is_collective: bool = False) -> None:
        self._waiting, self.connected = [list(each) for each in ranks], 0
        shape, places = GroupShape("engine", len(ranks)), [{}] * len(ranks)
        self.with_buffers: list[str] = []
        super().__init__(
            "rollout", shape, config, {}, places, provide_buffers=self._provide, is_collective=is_collective
        )

    async def _provide(self, nodes: Sequence[str]) -> None:
        self.with_buffers += nodes

    def _spawn(self, rank: int, num_ranks: int) -> Rank:
        return self._waiting[rank].pop(0)

    def run(self, *, beside_others: bool = False) -> list[Any]:
        """Run a node and wait for a moment, so that anything still running would show."""

        async def run() -> list[Any]:
            try:
                return await self.run_node([CALL] * len(self), beside_others=beside_others)
            finally:
                await asyncio.sleep(0.1)

        return asyncio.run(run())


def failing(error: Exception) -> Callable[[], Any]:
    def fail() -> None:
        raise error

    return fail


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Rank]]:
    ranks: list[Rank] = []
    monkeypatch.setattr(ray, "kill", ranks.append)
    yield ranks


@pytest.mark.parametrize(
    "error",
    [
        ray.exceptions.ActorDiedError(),
        ray.exceptions.ActorUnavailableError("its node does not answer", None),
        ray.exceptions.ActorUnschedulableError("its node is gone"),
        OUT_OF_MEMORY,
    ],
)
def test_a_rank_is_replaced_whatever_ended_it(
    error: Exception, tiny_config: Callable[..., RunConfig], killed: list[Rank]
) -> None:
    lost = Rank(1, failing(error))
    group = Group(tiny_config(), [lost, Rank(2)])
    assert group.run() == ["done"]
    assert killed == [lost] and group.pids == {0: 2}


def test_ranks_leave_a_node(tiny_config: Callable[..., RunConfig], killed: list[Rank]) -> None:
    stays, leaves, successor = Rank(1), Rank(2), Rank(3)
    leaves.node, successor.node = "drained", "joined"
    group = Group(tiny_config(), [stays], [leaves, successor], is_collective=True)

    async def leave() -> None:
        await group.start()
        assert group.nodes == {0: "node", 1: "drained"}
        await group.mend({"drained"})

    asyncio.run(leave())
    assert group.nodes == {0: "node", 1: "joined"} and group.pids == {0: 1, 1: 3}
    assert killed == [leaves] and group.with_buffers == ["node", "drained", "joined"]


def test_a_rank_of_a_group_with_a_shared_model_is_lost(tiny_config: Callable[..., RunConfig]) -> None:
    group = Group(tiny_config(), [Rank(1, failing(OUT_OF_MEMORY))], is_collective=True)
    with pytest.raises(WorkerLostError) as caught:
        group.run()
    assert str(caught.value) == (
        "a worker of the rollout group is gone: 1 worker was killed due to the node running low on memory; lower "
        "rollout.num_workers or rollout.envs_per_worker, or give the machine more memory"
    )


def test_further_ranks_join_between_two_nodes(tiny_config: Callable[..., RunConfig], killed: list[Rank]) -> None:
    may_end = asyncio.Event()
    first, second, third = Rank(1, node=may_end.wait), Rank(2), Rank(3)
    group = Group(tiny_config(), [first])
    group._waiting += [[second], [third]]

    async def resize() -> None:
        await group.start()
        node = asyncio.create_task(_within(group))
        await asyncio.sleep(0.01)
        growing = asyncio.create_task(group.resize(3))
        async with asyncio.timeout(20.0):  # they start beside nodes
            while not (second.has_started and third.has_started):
                await asyncio.sleep(0.01)
        assert len(group) == 1 and not growing.done()
        late = asyncio.create_task(_within(group))
        may_end.set()
        await growing
        assert len(await node) == 1 and len(await late) == 3

    asyncio.run(resize())
    assert [rank.shares_with for rank in (first, second, third)] == [3, 3, 3]
    assert group.pids == {0: 1, 1: 2, 2: 3} and not killed


async def _within(group: Group) -> list[Any]:
    async with group.membership.used():
        return await group.run_node([CALL] * len(group))


def test_the_last_ranks_end_once_no_node_runs(tiny_config: Callable[..., RunConfig], killed: list[Rank]) -> None:
    first, second = Rank(1), Rank(2, node=after(0.05))
    group = Group(tiny_config(), [first], [second, Rank(3)])

    async def resize() -> None:
        await group.start()
        node = asyncio.create_task(_within(group))
        await asyncio.sleep(0.01)
        await group.resize(1)
        assert node.done(), "the node has ended before its rank"
        assert killed == [second] and group.pids == {0: 1} and first.shares_with == 1
        await group.resize(2)

    asyncio.run(resize())
    assert group.pids == {0: 1, 1: 3} and first.shares_with == 2


@pytest.mark.parametrize("error", [OUT_OF_MEMORY, ValueError("no such environment")])
def test_a_rank_that_fails_to_start_leaves_the_group_as_it_was(
    error: Exception, tiny_config: Callable[..., RunConfig], killed: list[Rank]
) -> None:
    failed, good = Rank(2, start=failing(error)), Rank(3)
    group = Group(tiny_config(), [Rank(1)])
    group._waiting.append([failed, good])

    async def resize() -> None:
        await group.start()
        with pytest.raises((WorkerLostError, ValueError)):
            await group.resize(2)
        assert len(group) == 1 and killed == [failed]
        await group.resize(2)

    asyncio.run(resize())
    assert group.pids == {0: 1, 1: 3}


def test_the_log_says_why_a_rank_is_replaced(
    tiny_config: Callable[..., RunConfig], killed: list[Rank], caplog: pytest.LogCaptureFixture
) -> None:
    Group(tiny_config(), [Rank(1, failing(OUT_OF_MEMORY)), Rank(2)]).run()
    [line] = [record.getMessage() for record in caplog.records if "is replaced" in record.getMessage()]
    assert "running low on memory; lower rollout.num_workers or rollout.envs_per_worker" in line


@pytest.mark.parametrize(("kills", "processes"), [(1, "a process"), (3, "3 processes")])
def test_the_log_says_that_the_kernel_ran_out_of_memory(
    kills: int,
    processes: str,
    tiny_config: Callable[..., RunConfig],
    killed: list[Rank],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    counts = iter([7, 7 + kills])
    monkeypatch.setattr(lost_actors, "kernel_kills", lambda: next(counts))
    gone = ray.exceptions.RayActorError("actor")
    Group(tiny_config(), [Rank(1, failing(gone)), Rank(2)]).run()
    [line] = [record.getMessage() for record in caplog.records if "is replaced" in record.getMessage()]
    assert f"its kernel killed {processes}; lower rollout.num_workers or rollout.envs_per_worker" in line


def test_a_start_that_takes_too_long_names_its_key(tiny_config: Callable[..., RunConfig]) -> None:
    group = Group(tiny_config("cluster.start_timeout=0.05"), [Rank(1, start=after(0.3))])
    killed: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray, "kill", killed.append)
        patch.setattr(group_module, "INTERRUPT_SECONDS", 0.01)
        with pytest.raises(NodeTimeoutError) as caught:
            asyncio.run(group.start())
    expected = "cluster.start_timeout=0.05: the rollout group did not start in that time; raise it"
    assert str(caught.value) == expected and killed == group._ranks


def test_the_event_loop_runs_while_ray_starts_another_rank(
    tiny_config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray blocks that call once the head of the cluster is gone, and the watch on the cluster needs the loop."""
    may_start = threading.Event()

    class Blocked(Group):
        def _spawn(self, rank: int, num_ranks: int) -> Rank:
            if len(self._waiting[rank]) == 1:  # the replacement
                assert may_start.wait(20.0), "the loop was blocked"
            return super()._spawn(rank, num_ranks)

    async def run() -> list[Any]:
        asyncio.get_running_loop().call_later(0.05, may_start.set)
        ranks = [Rank(1, failing(ray.exceptions.ActorDiedError())), Rank(2)]
        return await Blocked(tiny_config(), ranks).run_node([CALL])

    monkeypatch.setattr(ray, "kill", lambda rank: None)
    assert asyncio.run(run()) == ["done"]


def test_a_rank_killed_for_memory_while_it_starts_is_lost(
    tiny_config: Callable[..., RunConfig], killed: list[Rank]
) -> None:
    group = Group(tiny_config(), [Rank(1, start=failing(OUT_OF_MEMORY))])
    with pytest.raises(WorkerLostError, match="did not start: 1 worker was killed"):
        asyncio.run(group.start())


def after(seconds: float, work: Callable[[], Any] = lambda: "done") -> Callable[[], Any]:
    async def wait() -> Any:
        await asyncio.sleep(seconds)
        return work()

    return wait


@pytest.mark.parametrize(
    "sibling",
    [Rank(1, after(0.03, failing(OUT_OF_MEMORY))), Rank(1, failing(OUT_OF_MEMORY))],
    ids=["lost later", "about to be replaced"],
)
def test_a_node_that_fails_on_one_rank_stops_on_all(
    sibling: Rank, tiny_config: Callable[..., RunConfig], killed: list[Rank]
) -> None:
    successor = Rank(2, start=after(0.05))
    group = Group(tiny_config(), [sibling, successor], [Rank(3, after(0.02, failing(LookupError("the drawer"))))])
    with pytest.raises(LookupError, match="the drawer"):
        group.run()
    assert successor.num_nodes == 0
    assert (group._ranks[0] is successor) == (sibling in killed)  # replaced before, so it never got the call


def test_nodes_with_a_model_take_turns_and_the_limit_excludes_the_wait(
    tiny_config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "INTERRUPT_SECONDS", 0.0)
    busy = asyncio.Lock()

    async def one_at_a_time() -> str:
        async with busy:
            await asyncio.sleep(0.5)
        return "done"

    group = Group(tiny_config(), [Rank(1, one_at_a_time)])

    async def both() -> list[list[Any]]:
        return await asyncio.gather(*(group.run_node([replace(CALL, timeout=0.8)]) for _ in range(2)))

    assert asyncio.run(both()) == [["done"], ["done"]]


@pytest.fixture
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "INTERRUPT_SECONDS", 0.0)


@pytest.mark.parametrize("unit", ["node", "group"])
def test_the_successor_of_a_lost_rank_has_the_whole_time_limit(
    unit: str, tiny_config: Callable[..., RunConfig], killed: list[Rank], no_grace: None
) -> None:
    """The limit excludes what the lost rank had done, and the start of its successor."""
    share = 0.6 * GROUP_CALL.timeout
    lost, successor = Rank(1, after(share, failing(OUT_OF_MEMORY))), Rank(2, node=after(share), start=after(share))
    group = Group(tiny_config(), [lost, successor])

    async def run() -> Any:
        if unit == "node":
            return (await group.run_node([replace(CALL, timeout=GROUP_CALL.timeout)]))[0]
        return await group.play_group(0, lambda: GROUP_CALL)

    assert asyncio.run(run()) == "done"
    assert killed == [lost]


def test_a_group_that_comes_while_a_rank_is_replaced_has_the_whole_time_limit(
    tiny_config: Callable[..., RunConfig], killed: list[Rank], no_grace: None
) -> None:
    share = 0.6 * GROUP_CALL.timeout
    lost, successor = Rank(1, failing(OUT_OF_MEMORY)), Rank(2, node=after(share), start=after(share))
    group = Group(tiny_config(), [lost, successor])

    async def run() -> list[Any]:
        await group.start()
        first = asyncio.create_task(group.play_group(0, lambda: GROUP_CALL))
        async with asyncio.timeout(20.0):
            while group._ranks[0] is lost:
                await asyncio.sleep(0.01)
        return [await group.play_group(0, lambda: GROUP_CALL), await first]

    assert asyncio.run(run()) == ["done", "done"]


@pytest.mark.parametrize("unit", ["node", "group"])
def test_each_attempt_has_a_time_limit(
    unit: str, tiny_config: Callable[..., RunConfig], killed: list[Rank], no_grace: None
) -> None:
    slow = Rank(2, node=after(20.0))
    group = Group(tiny_config(), [Rank(1, failing(OUT_OF_MEMORY)), slow])
    expected = {"node": "node on the rollout group took longer than 0.1 s"}

    async def run() -> None:
        if unit == "node":
            await group.run_node([replace(CALL, timeout=0.1)])
        await group.play_group(0, lambda: replace(GROUP_CALL, timeout=0.1))

    with pytest.raises(NodeTimeoutError) as caught:
        asyncio.run(run())
    assert str(caught.value) == expected.get(unit, "group 12 of rollout took longer than 0.1 s")
    assert slow.num_nodes == 1


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_node_without_a_model_runs_beside_others_unless_ranks_communicate(
    num_ranks: int, tiny_config: Callable[..., RunConfig]
) -> None:
    """Ranks must add up in the same order; concurrently, two ranks could start with different nodes."""
    running = [0, 0]  # current and largest number

    async def watch() -> str:
        running[0] += 1
        running[1] = max(running)
        await asyncio.sleep(0.05)
        running[0] -= 1
        return "done"

    group = Group(tiny_config(), [Rank(1, watch)], *([Rank(2)] for _ in range(num_ranks - 1)), is_collective=True)

    async def both() -> list[list[Any]]:
        return await asyncio.gather(*(group.run_node([CALL] * num_ranks, beside_others=each) for each in (False, True)))

    assert asyncio.run(both()) == [["done"] * num_ranks] * 2
    assert running == [0, 2 if num_ranks == 1 else 1]


OUT_OF_STEP = WorkerLostError("the rollout group is out of step: node node failed on a rank")


@pytest.mark.parametrize(
    ("failure", "then"),
    [(LookupError("the drawer"), LookupError("the drawer")), (ShardLostError("1/rollout/0", "here"), OUT_OF_STEP)],
    ids=["a bug", "a loss"],
)
@pytest.mark.parametrize("waits", [True, False], ids=["sibling waits", "sibling has ended"])
@pytest.mark.parametrize("has_model", [True, False], ids=["with a model", "without"])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_ranks_that_share_a_model_continue_after_a_failure_if_they_are_in_step(
    num_ranks: int,
    has_model: bool,
    waits: bool,
    failure: Exception,
    then: Exception,
    tiny_config: Callable[..., RunConfig],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sibling that still waits in a collective would mix it up with one of the next node.

    Siblings that have ended took part in the same collectives, but may have left a model half trained. A bug is raised
    again in the next node: as a lost worker it would be retried over and over.
    """
    monkeypatch.setattr(group_module, "ANSWER_SECONDS", 0.1)
    failures = [failure]

    def fail_once() -> str:
        if failures:
            raise failures.pop()
        return "done"

    async def sum_up() -> str:
        if waits and group.connected == 0:
            await asyncio.sleep(30)
        return "done"

    ranks = [Rank(1, fail_once), Rank(2, sum_up)][:num_ranks]
    group = Group(tiny_config(), *([rank] for rank in ranks), is_collective=True)
    with pytest.raises(type(failure)):
        group.run(beside_others=not has_model)
    if num_ranks > 1 and (has_model or waits):
        with pytest.raises(type(then)) as caught:
            group.run()
        assert str(caught.value) == str(then)
        assert [rank.num_nodes for rank in ranks] == [1, 1]
        group.connected += 1
        asyncio.run(group.connect())
    assert group.run(beside_others=not has_model) == ["done"] * num_ranks


def test_a_rank_whose_replacement_was_cancelled_is_known_after_mending(
    tiny_config: Callable[..., RunConfig], killed: list[Rank]
) -> None:
    bug = failing(LookupError("the drawer"))
    ranks = [Rank(1, failing(OUT_OF_MEMORY)), Rank(2, start=after(0.05))], [Rank(3, after(0.02, bug))]
    group = Group(tiny_config(), *ranks)
    with pytest.raises(LookupError):
        group.run()
    asyncio.run(group.mend())
    assert group.pids == {0: 2, 1: 3} and killed == [ranks[0][0]]


@pytest.mark.parametrize(("second", "address"), [("node", "loopback:1"), ("other", "node:1")])
def test_ranks_meet_on_the_loopback_interface_only_if_they_share_a_node(
    tiny_config: Callable[..., RunConfig], second: str, address: str
) -> None:
    ranks = [Rank(1), Rank(2)]
    ranks[1].node = second
    asyncio.run(Group(tiny_config(), [ranks[0]], [ranks[1]], is_collective=True).connect())
    assert [each.connected_to for each in ranks] == [address, address]
