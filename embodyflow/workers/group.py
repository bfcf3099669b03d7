"""A worker group: N ranks that run a node together, each on its share of the rows."""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Container, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar, cast

import ray

from embodyflow.config import RunConfig
from embodyflow.config.run import GroupShape
from embodyflow.errors import InfrastructureError, NodeTimeoutError, WorkerLostError
from embodyflow.process.tracing import span, trace_file
from embodyflow.workers.busy_time import BusyTime
from embodyflow.workers.calls import ChainCall, GroupCall, NodeCall, NodeResult
from embodyflow.workers.gpu_sharing import Options
from embodyflow.workers.lost_actors import ACTOR_GONE, LossReasons
from embodyflow.workers.membership import Membership
from embodyflow.workers.rank.profiles import PROFILES
from embodyflow.workers.rank.worker import Worker
from embodyflow.workers.ray_threads import in_thread

INTERRUPT_SECONDS = 5.0
"""Grace period beyond a node's time limit, in which its ranks interrupt it themselves."""

ANSWER_SECONDS = 10.0
"""Time after which an idle rank that does not answer counts as lost."""

MAX_RESTARTS = 3
"""How often a rank is restarted for one node before the node fails."""

_logger = logging.getLogger(__name__)

T = TypeVar("T")


class WorkerGroup:
    """The ranks of one role.

    The process that starts them owns them: when it ends, for whatever reason, Ray ends them too.

    Args:
        role: Name of the group: ``rollout`` or ``trainer``.
        shape: Engine of each rank (:class:`~embodyflow.workers.rank.worker.Worker`), and number of ranks.
        config: Run configuration.
        buffers: Buffer of each Ray node, by node id.
        places: Ray options that place each rank (:mod:`~embodyflow.workers.gpu_sharing`), as many as there may be.
        provide_buffers: Starts the buffers of Ray nodes, given their ids; called with those of ranks that have started.
        is_collective: Whether the ranks share a state (a sharded model), so that one cannot be replaced alone.

    Attributes:
        ranks_per_copy: Number of consecutive ranks that get the same rows.
        pids: Process id of each rank that has been ready.
        nodes: Id of the Ray node of each such rank.
        busy: Time that the ranks spend on nodes.
        membership: Keeps the number of ranks while they are used.
    """

    def __init__(
        self,
        role: str,
        shape: GroupShape,
        config: RunConfig,
        buffers: dict[str, Any],
        places: Sequence[Options],
        *,
        provide_buffers: Callable[[Sequence[str]], Coroutine[Any, Any, None]],
        is_collective: bool,
    ) -> None:
        self.role, self.ranks_per_copy = role, shape.ranks_per_copy
        self._engine, self._config, self._buffers = shape.engine, config, buffers
        self._places, self._provide_buffers, self._is_collective = places, provide_buffers, is_collective
        self._starts = Counter[int]()  # by rank
        self._reasons = LossReasons(config)
        self._replacing, self._model = asyncio.Lock(), asyncio.Lock()
        self._out_of_step_by: tuple[str, BaseException] | None = None  # a node, and its error
        self._ranks = [self._spawn(rank, shape.num_ranks) for rank in range(shape.num_ranks)]
        self._coming: list[Any] = []  # further ranks that do not belong to it yet
        self._started: dict[int, Any] = {}  # the handle of each rank that has been ready
        self.pids: dict[int, int] = {}
        self.nodes: dict[int, str] = {}
        self.busy = BusyTime(shape.num_ranks)
        self.membership = Membership()

    def __len__(self) -> int:
        """Return the number of ranks."""
        return len(self._ranks)

    async def start(self) -> None:
        """Wait until every rank's engine is built; kill all ranks if one fails.

        Raises:
            TimeoutError: The ranks were not ready within ``cluster.start_timeout``.
            Exception: An engine raised it while it was built.
        """
        try:
            await self._ready(dict(enumerate(self._ranks)))
        except BaseException:  # also if the start is cancelled
            self.kill()
            raise

    async def run_node(self, calls: Sequence[NodeCall], *, beside_others: bool = False) -> list[NodeResult]:
        """Run one node on all ranks at once; a rank that dies is replaced if possible.

        Its successor has the whole time limit again.

        Args:
            calls: One call per rank.
            beside_others: Whether other nodes may run on the ranks at the same time, because this one needs no model.
                Otherwise the node waits for its turn, which its time limit excludes. In a group whose ranks communicate
                all nodes take turns, so that the sums of two nodes cannot mix.

        Raises:
            NodeTimeoutError: The node exceeded its time limit; the message names it.
            WorkerLostError: A rank died that cannot be replaced alone, or it died repeatedly. Or the ranks communicate
                and are out of step, because an earlier node failed on some of them.
            Exception: The node function raised it on the first rank that failed, in this node or in that earlier one.
        """
        if beside_others and not self._ranks_communicate:
            return await self._on_every_rank("run_compute_node", calls)
        async with self.alone(iteration=calls[0].iteration, node=calls[0].node_id):
            self._check_in_step()
            try:
                return await self._on_every_rank("run_node", calls)
            except BaseException as error:
                if self._ranks_communicate:  # some may wait in a collective that others never reach
                    self._out_of_step_by = calls[0].node_id, error
                    if beside_others and await self._all_ended(error):  # and no model is left half trained
                        self._out_of_step_by = None
                raise

    async def run_chain(self, call: ChainCall) -> list[NodeResult]:
        """Run nodes one after the other on the only rank; return the results of those before the first that fails.

        Raises:
            NodeTimeoutError: They exceeded their time limits; the message names them.
            WorkerLostError: The rank died.
            Exception: The first node raised it.
        """
        assert len(self) == 1, "nodes on several ranks take turns"
        async with self.alone(iteration=call.iteration, node=call.node_id):
            await self._wait_for_start(0)
            seconds = call.timeout + INTERRUPT_SECONDS
            late = f"{call.node_id} on the {self.role} group took longer than {seconds:g} s"
            with self.busy.at_work(0):
                [results] = await self._within(self._all([self._ranks[0].run_chain.remote(call)]), late, seconds)
        return cast(list[NodeResult], results)

    async def play_group(self, rank: int, new_call: Callable[[], GroupCall]) -> NodeResult:
        """Play a group on one rank, beside others; a rank that dies is replaced, and its successor plays the group.

        The successor has the whole time limit again.

        Args:
            rank: Rank of the worker.
            new_call: Function that returns the call, for each attempt.

        Raises:
            NodeTimeoutError: The group exceeded its time limit.
            WorkerLostError: The rank died repeatedly.
            Exception: The group failed.
        """
        call = new_call()
        return await self._run_rank(rank, "play_group", f"group {call.ticket.group} of {call.node_id}", new_call)

    async def call(self, method: str, *args: Any) -> list[Any]:
        """Call ``method`` on every rank with the same arguments and return the answers in rank order.

        Raises:
            NodeTimeoutError: It took longer than ``cluster.node_timeout``.
            WorkerLostError: A rank died.
            Exception: The method raised it on the first rank that failed.
        """
        return await self.call_in_turns(method, [args] * len(self))

    async def call_in_turns(self, method: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call ``method`` once with each of these arguments, on one rank after the other; see :meth:`call`."""
        refs = [getattr(self._ranks[each % len(self)], method).remote(*args) for each, args in enumerate(calls)]
        seconds = self._config.cluster.node_timeout
        late = f"{method} on the {self.role} group took longer than {seconds:g} s"
        return await self._within(self._all(refs), late, seconds)

    async def call_rank(self, rank: int, method: str, *args: Any) -> Any:
        """Call ``method`` on one rank; see :meth:`call`."""
        [answer] = await self._all([getattr(self._ranks[rank], method).remote(*args)])
        return answer

    @asynccontextmanager
    async def alone(self, **facts: str | int) -> AsyncIterator[None]:
        """Wait until no node with a model runs on the ranks; none starts during the block.

        Args:
            facts: Facts of what waits, for the trace.
        """
        if self._model.locked():
            with span(f"wait for the {self.role} group", "wait", track="waits", **facts):
                await self._model.acquire()
        else:
            await self._model.acquire()
        try:
            yield
        finally:
            self._model.release()

    async def connect(self) -> None:
        """Form the ranks' torch.distributed group, led by rank 0; the models are those of the start."""
        nodes = await self.call("node_id")
        address = await self.call_rank(0, "hold_address", len(set(nodes)) == 1)
        await self.call("connect", address)
        self._out_of_step_by = None

    async def mend(self, leaving: Container[str] = ()) -> None:
        """Replace every rank that is gone, does not answer, or is on a Ray node that it must leave.

        Args:
            leaving: Ids of these nodes.
        """
        leaves = [self.nodes.get(rank) in leaving for rank in range(len(self))]
        await _gather(
            [
                self._replace(rank, self._ranks[rank]) if must_leave else self._mend(rank)
                for rank, must_leave in enumerate(leaves)
            ]
        )

    async def resize(self, number: int) -> None:
        """Start or end the last ranks until there are so many, and tell all of them how many share the rows.

        Further ranks start beside nodes, and join once no node runs. Groups are not waited for: none may be played on
        ranks that end.

        Raises:
            NodeTimeoutError: A new rank was not ready within ``cluster.start_timeout``.
            WorkerLostError: A rank died.
            Exception: An engine raised it while it was built.
        """
        try:
            async with self._replacing:
                for rank in range(len(self), number):
                    await in_thread(self._add, rank, number)
                await self._ready(dict(enumerate(self._coming, len(self))))
            async with self.membership.changed(), self._replacing:
                self._ranks, self._coming = [*self._ranks, *self._coming], []
                ended = self._ranks[number:]
                del self._ranks[number:]
                await _end(ended)
                self._started = {rank: handle for rank, handle in self._started.items() if rank < number}
                self.pids = {rank: pid for rank, pid in self.pids.items() if rank < number}
                self.nodes = {rank: node for rank, node in self.nodes.items() if rank < number}
                self.busy.resize(number)
                await self.call("invoke", "resize", number)
        finally:
            self._kill_coming()  # if they could not join

    def kill(self) -> None:
        """Kill the ranks' processes."""
        self._kill_coming()
        for rank in self._ranks:
            ray.kill(rank)

    def _kill_coming(self) -> None:
        coming, self._coming = self._coming, []
        for rank in coming:
            ray.kill(rank)

    @property
    def _ranks_communicate(self) -> bool:
        """Whether a node on one rank waits for its siblings on others."""
        return self._is_collective and len(self) > 1

    async def _all_ended(self, error: BaseException) -> bool:
        """Return True if every rank has ended the failed node, so that none waits in a collective.

        All ranks then took part in the same collectives: if one had missed a sum, the others would still wait in it.
        """
        is_cancelled = not isinstance(error, Exception)
        if is_cancelled or isinstance(error, (WorkerLostError, NodeTimeoutError)):
            return False
        answers = await _ask([rank.ready for rank in self._ranks], ANSWER_SECONDS)
        return all(answer.done() and answer.exception() is None for answer in answers)

    def _check_in_step(self) -> None:
        if self._out_of_step_by is None:
            return
        node_id, error = self._out_of_step_by
        if isinstance(error, Exception) and not isinstance(error, InfrastructureError):
            raise error  # a bug, which a retry would only repeat
        raise WorkerLostError(f"the {self.role} group is out of step: node {node_id} failed on a rank")

    async def _on_every_rank(self, method: str, calls: Sequence[NodeCall]) -> list[NodeResult]:
        what = f"{calls[0].node_id} on the {self.role} group"
        return await _gather(
            [self._run_rank(rank, method, what, partial(_same, call)) for rank, call in enumerate(calls)]
        )

    async def _run_rank(
        self, rank: int, method: str, what: str, new_call: Callable[[], NodeCall | GroupCall]
    ) -> NodeResult:
        """Run a call on a rank; a rank that dies is replaced if possible.

        The time limit is that of an attempt. It excludes the start of a successor, which has one of its own.
        """
        for attempt in range(MAX_RESTARTS + 1):
            await self._wait_for_start(rank)
            handle, call = self._ranks[rank], new_call()
            # A rank interrupts Python code itself; a hang in native code ends here.
            seconds = call.timeout + INTERRUPT_SECONDS
            try:
                with self.busy.at_work(rank):
                    answer = self._all([getattr(handle, method).remote(call)])
                    [result] = await self._within(answer, f"{what} took longer than {seconds:g} s", seconds)
                return cast(NodeResult, result)
            except WorkerLostError as loss:
                if self._is_collective or attempt == MAX_RESTARTS:
                    raise
                where = f"{self.role} worker {rank} died in node {call.node_id} and is replaced"
                _logger.warning("%s: %s", where, loss)
                await self._replace(rank, handle)
        raise AssertionError("unreachable")

    async def _all(self, refs: list[Any]) -> list[Any]:
        try:
            return await asyncio.gather(*refs)
        except ACTOR_GONE as error:
            raise WorkerLostError(
                f"a worker of the {self.role} group is gone: {self._reasons.explain(error)}"
            ) from error
        except Exception as error:
            if self._ranks_communicate and await self._any_dead():
                # Its siblings fail in their collectives, and their errors may arrive first.
                raise WorkerLostError(f"a worker of the {self.role} group is gone") from error
            raise

    async def _any_dead(self) -> bool:
        """Return True if the process of a rank has ended; a busy one has not."""
        answers = await _ask([rank.stacks for rank in self._ranks], ANSWER_SECONDS)
        return any(answer.done() and answer.exception() is not None for answer in answers)

    async def _mend(self, rank: int) -> None:
        handle = self._ranks[rank]
        [answer] = await _ask([handle.ready], ANSWER_SECONDS)
        if not answer.done() or answer.exception() is not None:
            _logger.warning("%s worker %d does not answer and is replaced", self.role, rank)
            await self._replace(rank, handle)
        else:
            self.pids[rank] = answer.result()  # still unknown if the wait for its start was cancelled

    async def _replace(self, rank: int, lost: Any) -> None:
        """Restart a rank, unless that happened since ``lost`` was its handle, and wait until it is ready."""
        async with self._replacing:
            if self._ranks[rank] is lost:
                await in_thread(self._respawn, rank, lost)
        await self._wait_for_start(rank)

    async def _wait_for_start(self, rank: int) -> None:
        """Wait until the engine of a rank is built, if it has replaced a lost one."""
        if self._started.get(rank) is self._ranks[rank]:
            return
        async with self._replacing:
            if self._started.get(rank) is not self._ranks[rank]:  # nobody else has waited for it
                await self._ready({rank: self._ranks[rank]})

    def _respawn(self, rank: int, lost: Any) -> None:
        """Replace a rank, also if no one waits for it any longer: no killed rank stays in the group."""
        ray.kill(lost)
        self._ranks[rank] = self._spawn(rank, len(self._ranks))

    def _add(self, rank: int, num_ranks: int) -> None:
        """Start a further rank, which joins the group later."""
        self._coming.append(self._spawn(rank, num_ranks))

    def _spawn(self, rank: int, num_ranks: int) -> Any:
        cluster = self._config.cluster
        self._starts[rank] += 1
        # The name of a dead rank may stay taken for a while. There is no runtime_env, because with one Ray starts new
        # processes instead of using its idle ones.
        again = f"#{self._starts[rank]}" * (self._starts[rank] > 1)
        return (
            _actor(Worker)
            .options(
                name=f"{self._config.run_id}/{self.role}/{rank}{again}",
                num_cpus=cluster.cpus_per_worker,
                num_gpus=cluster.gpus_per_worker,
                **self._places[rank],
            )
            .remote(
                self._engine,
                self._config,
                rank,
                num_ranks,
                self._buffers,
                os.getcwd(),
                self._trace(rank),
                self._profiles(rank),
            )
        )

    def _trace(self, rank: int) -> tuple[str, str] | None:
        """Return the folder that a rank records its trace in, and its name there."""
        file = trace_file()
        return None if file is None else (str(file.folder.absolute()), f"{self.role} {rank}")

    def _profiles(self, rank: int) -> str | None:
        """Return the folder that a rank writes its profiles to; ``None`` for a rank that is not profiled."""
        profile = self._config.trainer.profile
        is_profiled = self.role == "trainer" and bool(profile.iterations) and rank in profile.ranks
        return str(self._config.run_dir.absolute() / PROFILES) if is_profiled else None

    async def _ready(self, ranks: Mapping[int, Any]) -> None:
        """Wait until the engines of ranks are built."""
        seconds = self._config.cluster.start_timeout
        late = f"cluster.start_timeout={seconds:g}: the {self.role} group did not start in that time; raise it"
        ready = asyncio.gather(*(handle.ready.remote() for handle in ranks.values()))
        try:
            pids = await self._within(ready, late, seconds)
            nodes = await asyncio.gather(*(handle.node_id.remote() for handle in ranks.values()))
        except ACTOR_GONE as error:
            if getattr(error, "actor_init_failed", False):  # the engine's own error says why
                raise
            raise WorkerLostError(
                f"a worker of the {self.role} group did not start: {self._reasons.explain(error)}"
            ) from error
        self.pids.update(zip(ranks, pids, strict=True))
        self.nodes.update(zip(ranks, nodes, strict=True))
        await self._provide_buffers(nodes)
        self._started.update(ranks)

    async def _within(self, answers: Any, late: str, seconds: float) -> list[Any]:
        """Wait for answers; after ``seconds`` raise a :class:`NodeTimeoutError` with the message ``late``."""
        # Prefect's task timeout does not interrupt a wait on Ray.
        try:
            async with asyncio.timeout(seconds) as deadline:
                return list(await answers)
        except TimeoutError as error:
            if not deadline.expired():  # a rank raised it
                raise
            timeout = NodeTimeoutError(late)
            timeout.add_note(await self._stacks())
            raise timeout from error

    async def _stacks(self) -> str:
        """Return the stacks of all ranks that answer."""
        answers = await _ask([rank.stacks for rank in self._ranks], INTERRUPT_SECONDS)
        lines = []
        for rank, answer in enumerate(answers):
            known = answer.done() and answer.exception() is None
            lines.append(f"{self.role} worker {rank}: {answer.result() if known else 'does not answer'}")
        return "\n".join(lines)


def _same(call: NodeCall) -> NodeCall:
    return call


async def _gather(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently and return their results in order.

    Raises:
        Exception: One of them raised it first; the others are cancelled, and have ended when this returns.
    """
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _ask(methods: Sequence[Any], seconds: float) -> list[asyncio.Future[Any]]:
    """Call Ray methods and wait for at most ``seconds``; later answers and errors are ignored."""
    answers = [asyncio.wrap_future(method.remote().future()) for method in methods]
    for answer in answers:
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.wait(answers, timeout=seconds)
    return answers


async def _end(ranks: Sequence[Any]) -> None:
    """Kill ranks and wait until they do not answer any more."""
    for rank in ranks:
        ray.kill(rank)
    if ranks:
        await _ask([rank.stacks for rank in ranks], ANSWER_SECONDS)


def _actor(remote_class: Any) -> Any:
    """Return the actor class that ``@ray.remote`` made; type checkers see the class itself."""
    return remote_class
