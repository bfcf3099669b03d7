"""The number of ranks changes only while nobody uses them."""

import asyncio

from embodyflow.workers.membership import Membership


def test_a_change_waits_for_users_and_goes_before_further_ones() -> None:
    membership, events = Membership(), list[str]()

    async def use(name: str, seconds: float = 0.0) -> None:
        async with membership.used():
            events.append(f"{name} begins")
            await asyncio.sleep(seconds)
            events.append(f"{name} ends")

    async def change(name: str) -> None:
        async with membership.changed():
            events.append(f"{name} begins")
            await asyncio.sleep(0.01)
            events.append(f"{name} ends")

    async def whole() -> None:
        users = [asyncio.create_task(use("first", 0.02)), asyncio.create_task(use("second", 0.01))]
        await asyncio.sleep(0)
        changes = [asyncio.create_task(change("change")), asyncio.create_task(change("another"))]
        await asyncio.sleep(0)
        await asyncio.gather(*users, *changes, use("late"))

    asyncio.run(whole())
    assert events[:2] == ["first begins", "second begins"]
    assert events[2:4] == ["second ends", "first ends"]
    assert events.index("change ends") == events.index("change begins") + 1
    assert events.index("another ends") == events.index("another begins") + 1
    assert events.index("late begins") > events.index("change ends")


def test_a_change_that_is_cancelled_lets_users_go_on() -> None:
    membership = Membership()

    async def whole() -> None:
        async with membership.used():
            change = asyncio.create_task(membership.changed().__aenter__())
            await asyncio.sleep(0.01)
            change.cancel()
            await asyncio.gather(change, return_exceptions=True)
        async with asyncio.timeout(1), membership.used():
            pass

    asyncio.run(whole())
