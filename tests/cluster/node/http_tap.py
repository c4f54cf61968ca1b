"""What stands between two gateways: everything passes it, is written down, and may come to the wrong place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class Tap:
    """Its own port, before the ports that it leads to."""

    def __init__(self) -> None:
        self.port = 0
        self.leads_to = 0
        self.wrong: list[int] = []  # where the next connections come to instead
        self.sent = bytearray()  # by clients
        self.answered = bytearray()  # by what is behind it
        self._tasks: set[asyncio.Task[None]] = set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = self.wrong.pop(0) if self.wrong else self.leads_to
        with suppress(OSError):
            there, back = await asyncio.open_connection("127.0.0.1", port)
            try:
                ways = [self._pass_on(reader, back, heard=True), self._pass_on(there, writer, heard=False)]
                await asyncio.gather(*ways, return_exceptions=True)
            finally:
                back.close()  # a way that is cancelled before it begins closes nothing

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, heard: bool) -> None:
        try:
            while data := await reader.read(65536):
                if heard:
                    self.sent += data
                else:
                    self.answered += data
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: writer.close())

    def cut(self) -> None:
        """Every connection ends."""
        for task in list(self._tasks):
            task.cancel()

    async def ended(self) -> None:
        """Wait until every connection is closed."""
        if self._tasks:
            await asyncio.wait(self._tasks)


@asynccontextmanager
async def tap() -> AsyncIterator[Tap]:
    made = Tap()
    server = await asyncio.start_server(made.accept, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        made.cut()
        await server.wait_closed()
        await made.ended()
