import asyncio
import gc

import pytest

from toolway._async import wait_until_settled

pytestmark = pytest.mark.anyio


async def fails() -> None:
    raise ValueError("as expected")


async def test_whoever_stops_waiting_ends_what_he_waited_for_and_nobody_complains():
    loop, complaints = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    never: asyncio.Future[None] = loop.create_future()
    failed = asyncio.ensure_future(fails())
    waiter = asyncio.ensure_future(wait_until_settled(None, [never, failed]))
    await asyncio.sleep(0.01)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert never.cancelled()
    del failed, waiter
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []


async def test_what_is_late_is_ended():
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    await wait_until_settled(0.01, [never, asyncio.ensure_future(fails())])
    assert never.cancelled()
    await wait_until_settled(0.01, [])
