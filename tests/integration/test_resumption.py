"""Which flow runs are run again after a crash, by a real Prefect server's word."""

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


@flow(name="mortal")
def mortal() -> None:
    pass


async def state_after(*course: State) -> StateType | None:
    """Take a deployment's flow run through states to a crash, call the hook, and return what it is in then."""
    async with get_client() as client:
        run = await client.create_flow_run(mortal)
        for state in course:
            await client.set_flow_run_state(run.id, state, force=True)
        run = await client.read_flow_run(run.id)
        assert run.state is not None
        await resume_after_crash(mortal, run.model_copy(update={"deployment_id": uuid4()}), run.state)
        return (await client.read_flow_run(run.id)).state_type


@pytest.mark.parametrize(
    ("course", "ends"),
    [
        ((Running(), Crashed()), StateType.SCHEDULED),
        ((Running(), Cancelling(), Crashed()), StateType.CRASHED),
        ((Running(), Cancelling(), Crashed(), Cancelled()), StateType.CANCELLED),
        ((Running(), Cancelling(), Crashed(), Running(), Crashed()), StateType.SCHEDULED),
    ],
    ids=["crashed", "cancelled", "cancelled and told so", "cancelled, run again by hand, crashed"],
)
def test_what_crashed_is_run_again_unless_it_was_cancelled(
    prefect_api: str, course: tuple[State, ...], ends: StateType
) -> None:
    with temporary_settings({PREFECT_API_URL: prefect_api}):
        assert asyncio.run(state_after(*course)) == ends


def test_what_ran_within_a_crashed_run_is_closed_where_nobody_goes_on_either(
    prefect_api: str, caplog: pytest.LogCaptureFixture
) -> None:
    @task(name="iteration")
    def stand_in() -> None:
        pass

    async def states() -> list[StateType | None]:
        async with get_client() as client:
            run = await client.create_flow_run(mortal)
            for _ in range(MAX_RUNS):
                known = await client.read_flow_run(run.id)  # as the Prefect worker does, before it starts it
                await client.set_flow_run_state(run.id, Running(), force=True)
            within = await client.create_task_run(stand_in, flow_run_id=run.id, dynamic_key="1")
            child = await client.create_flow_run(mortal, parent_task_run_id=within.id, state=Running())
            await client.set_flow_run_state(run.id, Crashed(), force=True)
            await resume_after_crash(mortal, known.model_copy(update={"deployment_id": uuid4()}), Crashed())
            return [(await client.read_flow_run(each.id)).state_type for each in (run, child)]

    with temporary_settings({PREFECT_API_URL: prefect_api}):
        assert asyncio.run(states()) == [StateType.CRASHED, StateType.CRASHED]
    [line] = [record for record in caplog.records if "crashed 4 times and is left" in record.message]
    assert line.flow_run_name  # without it Prefect's own format of a line fails
