"""Encryption of one call between two nodes, with a key that only its call token carries.

    request     token, line end, sealed JSON-RPC request        (`seal_request`, `open_request`)
    reply       any number of sealed frames                      (`seal_reply`, `open_reply`)

The token is sealed with a key of the cluster, so only nodes can read the key of the call. A frame that was changed, or
that belongs to another call, cannot be opened: the key binds method, parameters and replies to the token. HTTP and NATS
carry the same bytes.
"""

from __future__ import annotations

import os
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from toolway.upstream.transport import Request

KEY_BYTES: Final = 32
MAX_TOKEN_BYTES: Final = 16 * 1024  # bytes of the call token before a sealed request
_REQUEST_NONCE: Final = bytes(12)  # one request per key
_SALT_BYTES: Final = 8
_COUNT_BYTES: Final = 4
_NONCE_BYTES: Final = _SALT_BYTES + _COUNT_BYTES
_WINDOW: Final = 64  # frames by which one may arrive too late
_REQUEST: Final = b"request"
_REPLY: Final = b"reply"


class CallCipher:
    """Cipher of one call: seals and opens its request and replies.

    Each side creates its own. Every cipher that seals replies has a new salt, so replaying a token never repeats a
    nonce.
    """

    __slots__ = ("_aead", "_count", "_last", "_peer_salt", "_salt", "_seen")

    def __init__(self, key: bytes) -> None:
        self._aead = AESGCM(key)
        self._salt = b""
        self._count = 0  # replies sealed
        self._peer_salt = b""
        self._last = 0  # greatest number of an opened reply
        self._seen = 0  # bit n: reply `_last - n` was opened

    def seal_request(self, message: bytes) -> bytes:
        """Encrypt the JSON-RPC request of the call. A key encrypts one request only."""
        return self._aead.encrypt(_REQUEST_NONCE, message, _REQUEST)

    def open_request(self, sealed: bytes) -> bytes | None:
        """Decrypt the call's JSON-RPC request; None if it was not encrypted with this call's key."""
        try:
            return self._aead.decrypt(_REQUEST_NONCE, sealed, _REQUEST)
        except InvalidTag:
            return None

    def seal_reply(self, frame: bytes) -> bytes:
        """Seal a frame for the caller: a response, a notification or a chunk."""
        if not self._salt:
            self._salt = os.urandom(_SALT_BYTES)
        self._count += 1
        nonce = self._salt + self._count.to_bytes(_COUNT_BYTES, "big")
        return nonce + self._aead.encrypt(nonce, frame, _REPLY)

    def open_reply(self, sealed: bytes) -> bytes | None:
        """Return the owner's frame, or None if it is forged, from another call, or was opened before."""
        nonce = sealed[:_NONCE_BYTES]
        try:
            frame = self._aead.decrypt(nonce, sealed[_NONCE_BYTES:], _REPLY)
        except (InvalidTag, ValueError):
            return None
        return frame if self._is_new(nonce[:_SALT_BYTES], int.from_bytes(nonce[_SALT_BYTES:], "big")) else None

    def _is_new(self, salt: bytes, number: int) -> bool:
        """Record the number of an opened reply. Return False if it was opened before, or is far too late."""
        if not self._peer_salt:
            self._peer_salt = salt
        elif salt != self._peer_salt:
            return False
        if number > self._last:
            shift = number - self._last
            self._seen = ((self._seen << shift) | 1) & ((1 << _WINDOW) - 1) if shift < _WINDOW else 1
            self._last = number
            return True
        bit = 1 << (self._last - number) if self._last - number < _WINDOW else 0
        if not bit or self._seen & bit:
            return False
        self._seen |= bit
        return True


class ForwardedRequest(Request):
    """A request to another node, with the call token and cipher that its transport needs."""

    call_token: str = ""
    cipher: CallCipher | None = None


def join_request(token: str, sealed: bytes) -> bytes:
    """Join a call token and a sealed request into the bytes that HTTP and NATS carry."""
    return b"%b\n%b" % (token.encode(), sealed)


def split_request(data: bytes) -> tuple[str, bytes] | None:
    """Split the bytes of a request into call token and sealed request; None if they are malformed."""
    end = data.find(b"\n", 0, MAX_TOKEN_BYTES)
    token = data[:end] if end > 0 else b""
    return (token.decode("ascii"), data[end + 1 :]) if token and token.isascii() else None
