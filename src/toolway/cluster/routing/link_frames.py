"""Frames on a link between two nodes: what is written to the stream. No I/O.

    record      length (4 bytes), then AES-GCM of one or more frames; the n-th record of a direction has the nonce n
    frame       kind (1 byte), number of the call (4), length (4), content
    message     content of one frame, or of several: all but the last one have `MORE` set in their kind

Each direction has its own key, to which both nodes contribute random bytes (`LinkKeys`). So a record that was
changed, dropped, repeated, reordered, or replayed from another connection cannot be opened, and the connection ends.

A large message is cut into chunks. A record holds at most one of them, after the small messages that wait, so a large
message delays all other messages by one record at most.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections import deque
from struct import Struct
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

CALL: Final = 1  # caller: a request
CANCEL: Final = 2  # caller: it does not wait for the call any more
REPLY: Final = 3  # called node: the response
NOTIFICATION: Final = 4  # called node: a notification that belongs to the call
PING: Final = 5
PONG: Final = 6
GOING: Final = 7  # called node: it accepts no new calls; those in flight are answered
MORE: Final = 0x80

CHUNK_BYTES: Final = 64 * 1024  # of a message in one frame
SMALL_RECORD_BYTES: Final = 64 * 1024  # of small messages after which a record is full
RANDOM_BYTES: Final = 32
LENGTH: Final = Struct(">I")
_FRAME: Final = Struct(">BII")
_OVERHEAD_BYTES: Final = 16  # a sealed record is longer than its frames by this
MAX_RECORD_BYTES: Final = SMALL_RECORD_BYTES + 2 * (CHUNK_BYTES + _FRAME.size) + _OVERHEAD_BYTES
MAX_RECORDS: Final = 1 << 40  # of one key


class LinkError(Exception):
    """Raised when the peer breaks the link's rules or its bytes were changed. The connection must end."""


class LinkFrame(NamedTuple):
    """One frame of a link between two nodes: a whole message, or a chunk of one."""

    kind: int  # without `MORE`
    number: int  # of the call
    content: memoryview
    is_last: bool


class LinkKeys(NamedTuple):
    """A link's encryption keys, one for each direction."""

    calls: bytes
    replies: bytes

    @classmethod
    def derive(cls, caller_random: bytes, called_random: bytes) -> LinkKeys:
        """Derive the keys from the secret random bytes of both sides, which only the two nodes know."""
        secret = caller_random + called_random
        calls, replies = (hmac.digest(secret, label, hashlib.sha256) for label in (b"link calls", b"link replies"))
        return cls(calls, replies)


def new_random() -> bytes:
    """Return the random bytes that one side of a link contributes to its keys."""
    return os.urandom(RANDOM_BYTES)


class RecordCipher:
    """Encrypts or decrypts the records of one direction of a link, in order."""

    __slots__ = ("_aead", "_count")

    def __init__(self, key: bytes) -> None:
        self._aead = AESGCM(key)
        self._count = 0

    def _next_nonce(self) -> bytes:
        if self._count >= MAX_RECORDS:
            raise LinkError("too many records with one key")
        self._count += 1
        return self._count.to_bytes(12, "big")

    def seal(self, frames: bytes) -> bytes:
        """Return frames as the next encrypted record, preceded by its length."""
        sealed = self._aead.encrypt(self._next_nonce(), frames, None)
        return LENGTH.pack(len(sealed)) + sealed

    def open(self, sealed: bytes | memoryview) -> bytes:
        """Decrypt the next record of the peer and return the frames in it.

        Raises `LinkError` if the record was changed, or is not the next one that the peer has sent.
        """
        try:
            return self._aead.decrypt(self._next_nonce(), sealed, None)
        except (InvalidTag, ValueError):
            raise LinkError("a record cannot be opened") from None


def split_frames(record: bytes) -> list[LinkFrame]:
    """Split an opened record into its frames. Raises `LinkError` if it does not consist of frames."""
    view, position, size = memoryview(record), 0, len(record)
    found = []
    while position < size:
        if size - position < _FRAME.size:
            raise LinkError("a frame is cut off")
        kind, number, length = _FRAME.unpack_from(record, position)
        position += _FRAME.size
        if length > size - position:
            raise LinkError("a frame is cut off")
        found.append(LinkFrame(kind & ~MORE, number, view[position : position + length], not kind & MORE))
        position += length
    return found


class RecordReader:
    """Cuts received bytes into sealed records. Oversized records are never stored."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes | memoryview]:
        """Return the sealed records that `data` completes, in order. Raises `LinkError` if one is too long."""
        if self._rest:
            data = self._rest + data
        size, position = len(data), 0
        found: list[bytes | memoryview] = []
        view = memoryview(data)
        while size - position >= LENGTH.size:
            length = LENGTH.unpack_from(data, position)[0]
            if not 0 < length <= MAX_RECORD_BYTES:
                raise LinkError("a record is too long")
            end = position + LENGTH.size + length
            if end > size:
                break
            found.append(view[position + LENGTH.size : end])
            position = end
        self._rest = bytes(view[position:]) if position < size else b""
        return found


class IncompleteMessages:
    """A link's incomplete messages, by kind and call number, within limits."""

    def __init__(self, max_message_bytes: int, max_total_bytes: int) -> None:
        self._max_message_bytes = max_message_bytes
        self._max_total_bytes = max_total_bytes
        self._parts: dict[tuple[int, int], list[bytes]] = {}
        self._sizes: dict[tuple[int, int], int] = {}
        self._rejected: set[tuple[int, int]] = set()  # messages that were too large, until their last frame
        self.bytes = 0

    def add(self, frame: LinkFrame) -> bytes | memoryview | None:
        """Return the message that this frame completes, or None if more frames follow.

        Raises `OverflowError` if the message is too large, or if all incomplete ones together are: then all its
        frames are dropped.
        """
        key = (frame.kind, frame.number)
        if key in self._rejected:
            if frame.is_last:
                self._rejected.discard(key)
            return None
        if frame.is_last and key not in self._parts:
            return frame.content
        parts = self._parts.setdefault(key, [])
        size = self._sizes.get(key, 0) + len(frame.content)
        self.bytes += len(frame.content)
        self._sizes[key] = size
        if size > self._max_message_bytes or self.bytes > self._max_total_bytes:
            self.drop(*key)
            if not frame.is_last:
                self._rejected.add(key)
            raise OverflowError("the message is too large")
        parts.append(bytes(frame.content))
        if not frame.is_last:
            return None
        message = b"".join(parts)
        self.drop(*key)
        return message

    def drop(self, kind: int, number: int) -> None:
        """Forget a call's incomplete message, if any: the peer sends no more of it."""
        self._rejected.discard((kind, number))
        if self._parts.pop((kind, number), None) is not None:
            self.bytes -= self._sizes.pop((kind, number))


class _Message:
    __slots__ = ("content", "kind", "number", "position")

    def __init__(self, kind: int, number: int, content: memoryview) -> None:
        self.kind = kind
        self.number = number
        self.content = content
        self.position = 0


class Outbox:
    """Queue of messages to be written to a link.

    Messages of one call stay in order; small ones overtake the large ones of other calls.
    """

    def __init__(self) -> None:
        self._small: deque[tuple[int, int, bytes]] = deque()
        self._large: dict[int, deque[_Message]] = {}  # by call, in turns; behind a large message small ones wait too
        self.bytes = 0  # that wait

    def __bool__(self) -> bool:
        return bool(self._small or self._large)

    def add(self, kind: int, number: int, content: bytes) -> None:
        self.bytes += len(content)
        if number in self._large:
            self._large[number].append(_Message(kind, number, memoryview(content)))
        elif len(content) <= CHUNK_BYTES:
            self._small.append((kind, number, content))
        else:
            self._large[number] = deque([_Message(kind, number, memoryview(content))])

    def next_record(self) -> tuple[bytes, list[int]]:
        """Take queued frames of calls for the next encrypted record of the connection.

        Return their bytes, and the numbers of the calls whose last frame is among them.
        """
        parts: list[bytes | memoryview] = []
        ended: list[int] = []
        size = 0
        small = self._small
        while small and size < SMALL_RECORD_BYTES:
            kind, number, content = small.popleft()
            parts += (_FRAME.pack(kind, number, len(content)), content)
            size += len(content)
            ended.append(number)
        if self._large:
            size += self._add_chunk(parts, ended)
        self.bytes -= size
        return b"".join(parts), ended

    def _add_chunk(self, parts: list[bytes | memoryview], ended: list[int]) -> int:
        """Add the next chunk of a large message to a record, and return its size. Large messages take turns."""
        number = next(iter(self._large))
        messages = self._large.pop(number)
        message = messages[0]
        chunk = message.content[message.position : message.position + CHUNK_BYTES]
        message.position += len(chunk)
        is_last = message.position == len(message.content)
        parts += (_FRAME.pack(message.kind | (0 if is_last else MORE), number, len(chunk)), chunk)
        if is_last:
            ended.append(number)
            messages.popleft()
        if messages:
            self._large[number] = messages
        return len(chunk)

    def has_begun(self, number: int) -> bool:
        """Return True if a call's message was sent in part."""
        messages = self._large.get(number)
        return messages is not None and messages[0].position > 0

    def remove(self, number: int) -> bool:
        """Remove a call's queued messages. Return True if the peer already has part of one."""
        messages = self._large.pop(number, ())
        self.bytes -= sum(len(each.content) - each.position for each in messages)
        for waiting in [waiting for waiting in self._small if waiting[1] == number]:
            self._small.remove(waiting)
            self.bytes -= len(waiting[2])
        return any(each.position for each in messages)
