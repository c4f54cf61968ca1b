"""Subjects, frames and chunked transfers of RPC over NATS. No I/O.

    caller                                                  owner
    call.<node>.<epoch>          calls                 →    queue group: if two subscribe, one receives the call
    call.<node>.<epoch>.c        control frames        →    all subscribers; the one with the call handles it
    reply.<caller>.a             batches of replies    ←
    reply.<caller>.b             heartbeats            ←    one for all calls of a caller, with their ids
    reply.<caller>.<id>          frames of one call    ←    single frames and chunks

Calls and replies are sealed JSON-RPC messages (`routing/call_cipher.py`). Each frame about one call that an owner
sends is sealed separately; a caller ignores an unsealed one. Heartbeats, status queries and acknowledgements are not
sealed: forging them can only delay or end calls, and so can dropping messages.

Small messages are sent whole, in batches with frames for the same target (`batching.py`). A large one is sent in
chunks, few at a time: a connection filled by one reply would delay the heartbeats of all other calls. The first byte of
a frame is its type. Calls have a reply subject on which NATS itself reports that no node listens. Control frames have
another one: no listener then does not mean that no node has the call.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

MAX_UNCHUNKED_BYTES: Final = 256 * 1024  # bytes; larger messages are sent in chunks
CHUNK_BYTES: Final = 64 * 1024  # bytes
MAX_EARLY_CHUNKS: Final = 8  # chunks by which one may arrive too early
MAX_UNACKED_CHUNKS: Final = 2  # unacknowledged chunks of one message
MAX_UNACKED_CHUNKS_PER_NODE: Final = 4  # unacknowledged chunks of all messages of one node
ACK_TIMEOUT_S: Final = 3.0  # seconds without an acknowledgement after which the receiver counts as gone
FRAME_OVERHEAD_BYTES: Final = 256  # bytes of a frame besides the message
BATCH_ENTRY_OVERHEAD_BYTES: Final = 32  # maximum bytes that each frame adds to the head of a batch
MAX_DIGITS: Final = 16  # of an id or a length
MAX_BATCH_FRAMES: Final = 1024  # frames in one batch: a batch of 32 kB has no more, with their overhead

BATCH_FRAME: Final = b"M"  # batch: id and length of each frame, separated by blanks, a line end, the frames
CALL_FRAME: Final = b"Q"  # call: call token, a line end, a sealed JSON-RPC request
SEALED_FRAME: Final = b"S"  # sealed frame of an owner: a reply, notification or chunk
REPLY_FRAME: Final = b"{"  # reply: a JSON-RPC response, without type byte
NOTIFICATION_FRAME: Final = b"N"  # notification that belongs to the call
FIRST_CHUNK_FRAME: Final = b"P"  # first chunk: total length, a line end, the chunk
NEXT_CHUNK_FRAME: Final = b"C"  # next chunk: its number, a line end, the chunk
ACK_FRAME: Final = b"A"  # acknowledgement of a chunk
CANCEL_FRAME: Final = b"X"
HEARTBEAT_FRAME: Final = b"B"  # heartbeat: ids of calls in flight, separated by blanks
STATUS_QUERY_FRAME: Final = b"W"  # status query: ids of calls for which the caller may have missed replies

CONTROL_SUFFIX: Final = "c"
HEARTBEAT_SUFFIX: Final = "b"
BATCH_SUFFIX: Final = "a"
BATCH_ID_PREFIX: Final = "m"  # precedes the number of a batch of calls
CONTROL_ID_PREFIX: Final = "c"  # precedes a call id in the reply subject of control frames
_REPLY_SUBJECT: Final = re.compile(rf"([A-Za-z0-9_-]{{1,120}})\.[{CONTROL_ID_PREFIX}{BATCH_ID_PREFIX}]?([0-9]{{1,16}})")

PublishChunk = Callable[[bytes], Awaitable[None]]


class InvalidFrame(Exception):
    """Raised when a received RPC frame is malformed."""


class Subjects:
    """Builds and parses the NATS subjects of calls between nodes.

    `prefix` belongs to one tenant, so a tenant can be a NATS account.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._reply_root = f"{prefix}.reply."

    def call_subject(self, node: str, epoch: int) -> str:
        """Return the subject on which a node receives calls under one lease (`epoch`)."""
        return f"{self._prefix}.call.{node}.{epoch}"

    def reply_prefix(self, caller: str) -> str:
        """Return the prefix of all reply subjects of a calling node."""
        return f"{self._reply_root}{caller}."

    def parse_reply_subject(self, subject: str) -> tuple[str, str] | None:
        """Return the calling node and the call id of a reply subject.

        Return None for any other subject: no sender may make us publish elsewhere.
        """
        if not subject.startswith(self._reply_root):
            return None
        found = _REPLY_SUBJECT.fullmatch(subject, len(self._reply_root))
        return (found[1], found[2]) if found is not None else None


# -- frames -----------------------------------------------------------------------------------------------------------


def encode_batch(ids: list[str], frames: list[bytes]) -> bytes:
    """Encode several frames, each with its call id, as one batch frame."""
    head = " ".join([f"{id_} {len(frame)}" for id_, frame in zip(ids, frames, strict=True)])
    return b"".join((BATCH_FRAME, head.encode(), b"\n", *frames))


def decode_batch(packed: bytes) -> list[tuple[str, bytes]]:
    """Decode a batch frame into pairs of call id and frame. Raises `InvalidFrame` if malformed."""
    end = packed.find(b"\n")
    numbers = packed[len(BATCH_FRAME) : max(end, 0)].split(b" ")
    if len(numbers) > 2 * MAX_BATCH_FRAMES or len(numbers) % 2:
        raise InvalidFrame
    if not all(map(bytes.isdigit, numbers)) or max(map(len, numbers)) > MAX_DIGITS:
        raise InvalidFrame
    found, offset = [], end + 1
    for id_, length in zip(numbers[::2], map(int, numbers[1::2]), strict=True):
        found.append((id_.decode(), packed[offset : offset + length]))
        offset += length
    if offset != len(packed):
        raise InvalidFrame
    return found


def encode_ids(kind: bytes, call_ids: Iterator[str] | list[str]) -> bytes:
    """Encode a frame of this kind that contains only call ids, such as a heartbeat."""
    return kind + " ".join(call_ids).encode()


def decode_ids(frame: bytes) -> list[str]:
    """Return the call ids in a frame that contains only ids, such as a heartbeat."""
    return frame[1:].decode("ascii", "replace").split()


# -- chunks -----------------------------------------------------------------------------------------------------------


def fits_unchunked(frame: bytes, max_payload: int) -> bool:
    """Return True if a frame is small enough to be sent as one NATS message, without chunks."""
    return len(frame) <= min(MAX_UNCHUNKED_BYTES, max_payload - FRAME_OVERHEAD_BYTES)


def chunk_count(frame: bytes, max_payload: int) -> int:
    """Return the number of chunks into which a frame is split for NATS."""
    return -(-len(frame) // _chunk_size(max_payload))


def split_chunks(frame: bytes, max_payload: int) -> Iterator[bytes]:
    """Yield the chunks of a large frame, each small enough for one NATS message."""
    size = _chunk_size(max_payload)
    yield b"%b%d\n%b" % (FIRST_CHUNK_FRAME, len(frame), frame[:size])
    for number, start in enumerate(range(size, len(frame), size), 1):
        yield b"%b%d\n%b" % (NEXT_CHUNK_FRAME, number, frame[start : start + size])


def _chunk_size(max_payload: int) -> int:
    return max(1, min(CHUNK_BYTES, max_payload - FRAME_OVERHEAD_BYTES))


class Reassembly:
    """Reassembles one large message from its chunks.

    Tolerates duplicate chunks, and chunks that are slightly out of order.
    """

    def __init__(self, max_bytes: int) -> None:
        self.length = -1  # of the message, once known
        self._max_bytes = max_bytes
        self._next_number = 0
        self._early_chunks: dict[int, bytes] = {}
        self._data = bytearray()

    def add(self, chunk: bytes) -> bool:
        """Add a received chunk of the message. Return False if it is a duplicate.

        Raises `InvalidFrame` if the chunk is malformed or far too early, `OverflowError` if the message exceeds the
        limit.
        """
        number, data = _decode_chunk(chunk)
        if chunk[:1] == FIRST_CHUNK_FRAME and self.length < 0:
            self.length, number = number, 0
            if self.length > self._max_bytes:
                raise OverflowError
        elif chunk[:1] == FIRST_CHUNK_FRAME or number < self._next_number or number in self._early_chunks:
            return False
        kept = len(self._data) + sum(map(len, self._early_chunks.values()))
        if number >= self._next_number + MAX_EARLY_CHUNKS or kept + len(data) > self._max_length():
            raise InvalidFrame
        self._early_chunks[number] = data
        while self._next_number in self._early_chunks:
            self._data += self._early_chunks.pop(self._next_number)
            self._next_number += 1
        if not data or len(self._data) > self.length >= 0:
            raise InvalidFrame
        return True

    def _max_length(self) -> int:
        return self.length if self.length >= 0 else self._max_bytes

    @property
    def message(self) -> bytes | None:
        """Return the complete message; None while chunks of it are missing."""
        return bytes(self._data) if len(self._data) == self.length else None


def _decode_chunk(frame: bytes) -> tuple[int, bytes]:
    end = frame.find(b"\n", 0, 20)
    digits = frame[1:end] if end > 1 else b""
    if (
        frame[:1] not in (FIRST_CHUNK_FRAME, NEXT_CHUNK_FRAME)
        or not digits.isdigit()
        or (frame[:1] == NEXT_CHUNK_FRAME and not int(digits))
    ):
        raise InvalidFrame
    return int(digits), frame[end + 1 :]


class TransferStalled(Exception):
    """Raised when the receiver of a chunked message stops acknowledging chunks."""


class ChunkedTransfer:
    """Sends one large message in chunks, which the receiver acknowledges.

    Flow-control windows limit the unacknowledged chunks per message and per node. That keeps all buffers small, ours
    and those of NATS, and lets other messages pass between chunks.
    """

    def __init__(self, window: asyncio.Semaphore) -> None:
        self._window = window  # shared by all messages of this node
        self._own_window = asyncio.Semaphore(MAX_UNACKED_CHUNKS)
        self._unacked = 0

    def acknowledge(self) -> None:
        """Record that the receiver acknowledged one chunk."""
        if self._unacked:
            self._unacked -= 1
            self._own_window.release()
            self._window.release()

    async def send(self, frame: bytes, max_payload: int, publish: PublishChunk, on_last: Callable[[], None]) -> None:
        """Send a message in chunks; return when the receiver has acknowledged all.

        `on_last` is called before the last chunk is sent. Raises `TransferStalled` if acknowledgements fail to arrive,
        and errors of `publish`.
        """
        remaining = chunk_count(frame, max_payload)
        try:
            for chunk in split_chunks(frame, max_payload):
                await self._acquire_own_window()
                try:
                    await self._window.acquire()  # bounded: every holder releases it within ACK_TIMEOUT_S
                except BaseException:
                    self._own_window.release()
                    raise
                self._unacked += 1
                remaining -= 1
                if not remaining:
                    on_last()
                await publish(chunk)
            for _ in range(MAX_UNACKED_CHUNKS):
                await self._acquire_own_window()
        finally:
            for _ in range(self._unacked):  # no acknowledgement will arrive any more
                self.acknowledge()

    async def _acquire_own_window(self) -> None:
        try:
            async with asyncio.timeout(ACK_TIMEOUT_S):
                await self._own_window.acquire()
        except TimeoutError:
            raise TransferStalled from None
