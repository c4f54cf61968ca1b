import asyncio
import gc

import pytest

from toolway._async import wait_until_settled

pytestmark = pytest.mark.anyio


async def fails() -> None:
    raise ValueError("as expected")


async def test_cancelled_wait_cancels_its_futures():
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


async def test_late_future_is_cancelled():
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    await wait_until_settled(0.01, [never, asyncio.ensure_future(fails())])
    assert never.cancelled()
    await wait_until_settled(0.01, [])


async def test_client_may_leave_a_test_server_silently():
    left = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\n")
        finally:
            left.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.close()
    await left.wait()
    server.close()
