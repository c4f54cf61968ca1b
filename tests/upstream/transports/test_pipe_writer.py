"""Writing to a pipe: order, how much left, and what happens when no one reads."""

from __future__ import annotations

import asyncio
import os

import pytest

from toolway.upstream.process.fd_pipes import FdSink
from toolway.upstream.transports.stdio_pipes import PipeBroken, PipeWriter

pytestmark = pytest.mark.anyio


def make(limit: float = 5.0) -> tuple[int, PipeWriter, list[str]]:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    said: list[str] = []
    return reader, PipeWriter(FdSink(writer), limit, lambda: said.append("stuck"), lambda: said.append("broken")), said


async def drain(reader: int, count: int) -> bytes:
    """`count` bytes out of the pipe, letting the loop write in the meantime."""
    os.set_blocking(reader, False)
    got = b""
    async with asyncio.timeout(10):
        while len(got) < count:
            try:
                got += os.read(reader, 65536)
            except BlockingIOError:
                await asyncio.sleep(0.001)
    return got


async def test_frames_pass_full_pipe_whole_and_in_order() -> None:
    reader, writer, _ = make()
    frames = [bytes([65 + n % 26]) * 50_000 + b"\n" for n in range(20)]
    handles = [writer.write_nowait(frame) for frame in frames]
    assert await drain(reader, sum(map(len, frames))) == b"".join(frames)
    assert all(handle.sent for handle in handles)
    writer.close()
    os.close(reader)


async def test_queued_frame_can_be_cancelled_but_started_frame_cannot() -> None:
    reader, writer, _ = make()
    begun = writer.write_nowait(b"a" * 200_000 + b"\n")
    waiting = writer.write_nowait(b"b\n")
    last = writer.write_nowait(b"c\n")
    assert writer.cancel(begun) is False
    assert writer.cancel(waiting) is True
    assert await drain(reader, 200_003) == b"a" * 200_000 + b"\nc\n"
    assert last.sent
    writer.close()
    os.close(reader)


async def test_frame_is_sent_only_after_its_last_byte() -> None:
    reader, writer, _ = make()
    sent: list[int] = []
    writer.write_nowait(b"x" * 200_000, lambda: sent.append(1))
    assert sent == []
    await drain(reader, 200_000)
    assert sent == [1]
    writer.close()
    os.close(reader)


async def test_stuck_reader_is_reported() -> None:
    reader, writer, said = make(limit=0.05)
    writer.write_nowait(b"x" * 200_000)
    async with asyncio.timeout(30):
        while not said:
            await asyncio.sleep(0.01)
    assert said == ["stuck"]
    writer.close()
    os.close(reader)


async def test_closed_reader_breaks_the_pipe() -> None:
    reader, writer, said = make()
    os.close(reader)
    frame = writer.write_nowait(b"x\n")
    assert said == ["broken"]
    assert not frame.sent
    with pytest.raises(PipeBroken):
        writer.write_nowait(b"y\n")


async def test_frames_of_one_loop_turn_are_written_together() -> None:
    reader, writer, _ = make()
    frames = [writer.write_nowait(b"%d\n" % n) for n in range(200)]
    assert [frame.sent for frame in frames[:3]] == [True, False, False]  # the first at once
    assert writer.cancel(frames[5]) is True
    await asyncio.sleep(0)
    expected = b"".join(b"%d\n" % n for n in range(200) if n != 5)
    assert await drain(reader, len(expected)) == expected
    assert all(frame.sent for frame in frames if frame is not frames[5])
    writer.close()
    os.close(reader)
