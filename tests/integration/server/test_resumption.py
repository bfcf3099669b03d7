"""Which flow runs are resumed after a crash, on a real Prefect server."""

import asyncio
from uuid import uuid4

import pytest
from prefect import flow, get_client, task
from prefect.client.schemas.objects import State, StateType
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelled, Cancelling, Crashed, Running

from embodyflow.orchestration.server.resumption import resume_after_crash
from embodyflow.orchestration.server.settings import MAX_RUNS

pytestmark = pytest.mark.integration


@flow(name="crashing")
def crashing() -> None:
    pass


async def state_after(*course: State) -> StateType | None:
    """Take a deployment's flow run through states to a crash and call the hook; return its final state."""
    async with get_client() as client:
        run = await client.create_flow_run(crashing)
        for state in course:
            await client.set_flow_run_state(run.id, state, force=True)
        run = await client.read_flow_run(run.id)
        assert run.state is not None
        await resume_after_crash(crashing, run.model_copy(update={"deployment_id": uuid4()}), run.state)
        return (await client.read_flow_run(run.id)).state_type


@pytest.mark.parametrize(
    ("course", "ends"),
    [
        ((Running(), Crashed()), StateType.SCHEDULED),
        ((Running(), Cancelling(), Crashed()), StateType.CRASHED),
        ((Running(), Cancelling(), Crashed(), Cancelled()), StateType.CANCELLED),
        ((Running(), Cancelling(), Crashed(), Running(), Crashed()), StateType.SCHEDULED),
    ],
    ids=["crashed", "cancelled", "cancelled and reported", "cancelled, restarted by hand, crashed"],
)
def test_a_crashed_run_is_resumed_unless_it_was_cancelled(
    prefect_api: str, course: tuple[State, ...], ends: StateType
) -> None:
    with temporary_settings({PREFECT_API_URL: prefect_api}):
        assert asyncio.run(state_after(*course)) == ends


def test_subflows_of_a_crashed_run_are_closed_even_if_it_is_not_resumed(
    prefect_api: str, caplog: pytest.LogCaptureFixture
) -> None:
    @task(name="iteration")
    def stand_in() -> None:
        pass

    async def states() -> list[StateType | None]:
        async with get_client() as client:
            run = await client.create_flow_run(crashing)
            for _ in range(MAX_RUNS):
                known = await client.read_flow_run(run.id)  # as the Prefect worker reads it before each start
                await client.set_flow_run_state(run.id, Running(), force=True)
            within = await client.create_task_run(stand_in, flow_run_id=run.id, dynamic_key="1")
            child = await client.create_flow_run(crashing, parent_task_run_id=within.id, state=Running())
            await client.set_flow_run_state(run.id, Crashed(), force=True)
            await resume_after_crash(crashing, known.model_copy(update={"deployment_id": uuid4()}), Crashed())
            return [(await client.read_flow_run(each.id)).state_type for each in (run, child)]

    with temporary_settings({PREFECT_API_URL: prefect_api}):
        assert asyncio.run(states()) == [StateType.CRASHED, StateType.CRASHED]
    [line] = [record for record in caplog.records if "crashed 4 times and is not resumed" in record.message]
    assert line.flow_run_name  # Prefect's log format requires it
