"""What two nodes say to each other over NATS about one call: subjects and frames. Pure.

    the caller                                            the owner
    call.<node>.<epoch>          calls               →    one of a queue group: were there two, one would hear it
    call.<node>.<epoch>.c        about a call        →    all that listen there; whoever has the call takes it
    reply.<caller>.a             about calls         ←
    reply.<caller>.b             signs of life       ←    once for all calls of a caller, which it names
    reply.<caller>.<id>          about one of them   ←    what goes alone, and pieces

A call and its answer are JSON-RPC messages and go whole while they are small, together with others that go the same way
(`outbox.py`). A large one goes in pieces, few at a time: a connection that is full of one answer would hold up the
signs of life of all others. The first byte says what a frame is. Calls have a reply subject, by which NATS itself says
that nobody listens; what is said about a call has another, because nobody listening then does not mean that nobody took
the call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

WHOLE: Final = 256 * 1024  # bytes of a message that is not sent in pieces
PIECE: Final = 64 * 1024
APART: Final = 8  # pieces by which one may come too early
ROOM: Final = 256  # bytes of a frame that are not the message

HEAD: Final = 32  # bytes that each frame of several costs, at the most
DIGITS: Final = 16  # of an id or a length

PACK: Final = b"M"  # several frames: for each its id and its length, with blanks between, a line end, the frames
CALL: Final = b"Q"  # a server's name, a line end, a request
ANSWER: Final = b"{"  # a JSON-RPC answer, and nothing else
NOTE: Final = b"N"  # a notification that belongs to the call
FIRST: Final = b"P"  # the length of the whole, a line end, the first piece
NEXT: Final = b"C"  # its number, a line end, a piece
TAKEN: Final = b"A"  # a piece has come
CANCEL: Final = b"X"
BEAT: Final = b"B"  # ids of calls that are under way, with blanks between
WHAT_OF: Final = b"W"  # the same from a caller that may have missed their answers

CONTROL: Final = "c"
BEATS: Final = "b"
ALL: Final = "a"
PACKED: Final = "m"  # before the number of a message with several calls
ABOUT: Final = "c"  # before an id
_CALLER: Final = re.compile(rf"([A-Za-z0-9_-]{{1,120}})\.[{ABOUT}{PACKED}]?([0-9]{{1,16}})")


class BadFrame(Exception):
    """What came is none of the above."""


class Subjects:
    """`root` is that of one tenant, so that a tenant can be an account of NATS."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._replies = f"{root}.reply."

    def calls(self, node: str, epoch: int) -> str:
        return f"{self._root}.call.{node}.{epoch}"

    def replies(self, caller: str) -> str:
        """What a caller's subjects for replies begin with."""
        return f"{self._replies}{caller}."

    def reply_of(self, subject: str) -> tuple[str, str] | None:
        """Caller and id; None where it is no subject for replies, so that nobody can make us talk to others."""
        if not subject.startswith(self._replies):
            return None
        found = _CALLER.fullmatch(subject, len(self._replies))
        return (found[1], found[2]) if found is not None else None


def call(server: str, message: bytes) -> bytes:
    return b"%b%b\n%b" % (CALL, server.encode(), message)


def read_call(frame: bytes) -> tuple[str, bytes]:
    """The server's name and the request. Raises `BadFrame`."""
    head, line_end, message = frame.partition(b"\n")
    if not line_end or head[:1] != CALL or not head.isascii():
        raise BadFrame
    return head[1:].decode(), message


def pack(ids: list[str], some: list[bytes]) -> bytes:
    head = " ".join([f"{id_} {len(frame)}" for id_, frame in zip(ids, some, strict=True)])
    return b"".join((PACK, head.encode(), b"\n", *some))


def unpack(packed: bytes) -> list[tuple[str, bytes]]:
    """The ids and frames of several. Raises `BadFrame`."""
    end = packed.find(b"\n")
    numbers = packed[len(PACK) : max(end, 0)].split(b" ")
    if len(numbers) % 2 or not all(map(bytes.isdigit, numbers)) or max(map(len, numbers)) > DIGITS:
        raise BadFrame
    found, at = [], end + 1
    for id_, length in zip(numbers[::2], map(int, numbers[1::2]), strict=True):
        found.append((id_.decode(), packed[at : at + length]))
        at += length
    if at != len(packed):
        raise BadFrame
    return found


def fits(frame: bytes, max_payload: int) -> bool:
    """Whether it is sent whole."""
    return len(frame) <= min(WHOLE, max_payload - ROOM)


def count(frame: bytes, max_payload: int) -> int:
    """Of the pieces of it."""
    return -(-len(frame) // _size(max_payload))


def pieces(frame: bytes, max_payload: int) -> Iterator[bytes]:
    size = _size(max_payload)
    yield b"%b%d\n%b" % (FIRST, len(frame), frame[:size])
    for number, start in enumerate(range(size, len(frame), size), 1):
        yield b"%b%d\n%b" % (NEXT, number, frame[start : start + size])


def _size(max_payload: int) -> int:
    return max(1, min(PIECE, max_payload - ROOM))


class Gathering:
    """The pieces of one message, as they come: again, or in another order, as long as they are not far apart."""

    def __init__(self, limit: int) -> None:
        self.length = -1  # of the whole, when it is known
        self._limit = limit
        self._next = 0
        self._early: dict[int, bytes] = {}
        self._data = bytearray()

    def add(self, piece: bytes) -> bool:
        """Whether it is new. Raises `BadFrame`; `OverflowError` where the whole is longer than the limit."""
        number, data = _numbered(piece)
        if piece[:1] == FIRST and self.length < 0:
            self.length, number = number, 0
            if self.length > self._limit:
                raise OverflowError
        elif piece[:1] == FIRST or number < self._next or number in self._early:
            return False
        if number >= self._next + APART:
            raise BadFrame
        self._early[number] = data
        while self._next in self._early:
            self._data += self._early.pop(self._next)
            self._next += 1
        if not data or len(self._data) > self.length >= 0:
            raise BadFrame
        return True

    @property
    def whole(self) -> bytes | None:
        """The message, when all of it is there."""
        return bytes(self._data) if len(self._data) == self.length else None


def _numbered(frame: bytes) -> tuple[int, bytes]:
    end = frame.find(b"\n", 0, 20)
    digits = frame[1:end] if end > 1 else b""
    if frame[:1] not in (FIRST, NEXT) or not digits.isdigit() or (frame[:1] == NEXT and not int(digits)):
        raise BadFrame
    return int(digits), frame[end + 1 :]


def ids(kind: bytes, some: Iterator[str] | list[str]) -> bytes:
    return kind + " ".join(some).encode()


def read_ids(frame: bytes) -> list[str]:
    return frame[1:].decode("ascii", "replace").split()
