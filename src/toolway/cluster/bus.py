"""Messages between the nodes of a tenant over NATS core: publish, subscribe, heartbeats.

NATS core delivers at most once, so no node depends on a message alone. A message is a hint to poll the database, or a
heartbeat. If a node may have missed messages (connection lost, slow consumer), `on_gap` is called and the node polls.

One wildcard subscription receives all messages of a tenant. Heartbeats are separate: if every node subscribed to all
other nodes, traffic would grow with the square of their number. A node subscribes only to the nodes that it currently
waits for (`heartbeat.py`).

Messages are sealed with the cluster key: a process that merely reaches NATS can neither forge nor read them. Each is
accepted once, so a recorded message has no effect either.

All subjects of a tenant have one prefix, and no message crosses tenants. So a tenant can be its own NATS account,
isolated by the NATS server: its nodes get the credentials of that account, and nothing else differs.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from toolway.cluster.heartbeat import HEARTBEAT_INTERVAL_S, HEARTBEAT_TIMEOUT_S, HeartbeatListener, Heartbeats
from toolway.cluster.nats_connection import NatsConnection
from toolway.cluster.node_auth import MAX_CLOCK_SKEW_S, CallTokenSealer
from toolway.types import Json

MAX_MESSAGE_BYTES: Final = 64 * 1024  # bytes of one message
MAX_PENDING_MESSAGES: Final = 10_000  # received messages that wait for the handler; more is a gap
CONNECT_TIMEOUT_S: Final = 2.0  # seconds
WARNING_INTERVAL_S: Final = 60.0  # seconds between two warnings about unreadable messages
MESSAGE_SEAL_KIND: Final = "news"  # purpose of the seal
MESSAGE_LIFETIME_S: Final = 300.0  # seconds a sealed message is valid: clocks of nodes may differ
NONCE_BYTES: Final = 16  # bytes: the unique beginning of every sealed text
MAX_SEEN_MESSAGES: Final = 50_000  # received messages that are remembered, twice
_SUBJECT_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")

_CREDS_BLOCK: Final = re.compile(rb"-{3,}BEGIN ([A-Z ]+)-{3,}\s*([A-Za-z0-9_.=-]+)\s*-{3,}END \1-{3,}")
_SEED_PREFIX: Final = 18 << 3  # first five bits of every seed: its text begins with S
_MAX_CREDS_BYTES: Final = 64 * 1024  # bytes

MessageHandler: TypeAlias = Callable[[str, Json], None]  # (kind, body); must not block

__all__ = ["HEARTBEAT_INTERVAL_S", "HEARTBEAT_TIMEOUT_S", "Bus", "Heartbeats", "subject_token"]
log = logging.getLogger("toolway.cluster")


class Bus:
    """One node's NATS connection: publishes and receives its tenant's messages."""

    def __init__(
        self,
        cluster: str,
        node: str,
        on_message: MessageHandler,
        on_gap: Callable[[], None],
        tenant: str = "default",
        sealer: CallTokenSealer | None = None,
    ) -> None:
        self.subject_prefix = f"toolway.{subject_token(cluster)}.{subject_token(tenant)}"  # prefix of all subjects
        self._node = subject_token(node)
        self._sealer = sealer
        self._warned_at = -WARNING_INTERVAL_S
        self._seen: set[bytes] = set()  # beginnings of the messages that were received
        self._seen_before: set[bytes] = set()
        self._seen_since = 0.0
        self._on_message = on_message
        self._on_gap = on_gap
        self._nats: Client | None = None
        self.last_error: Exception | None = None  # last error reported by the NATS client
        self._closing = False
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._listeners: dict[str, HeartbeatListener] = {}  # by node

    @property
    def is_connected(self) -> bool:
        return self._nats is not None and self._nats.is_connected

    async def connect(self, servers: Sequence[str], credentials: str | os.PathLike[str] | None = None) -> None:
        """Connect to NATS, and reconnect after every loss until `close`.

        `credentials` is a NATS `.creds` file. User and password may also be part of the server URLs. Raises `OSError`
        or `ValueError` if that file is unreadable or invalid, and `nats.errors.Error` if NATS rejects the connection.
        """
        auth_options: dict[str, Any] = nats_auth_options(credentials) if credentials is not None else {}
        connection = NatsConnection()
        await connection.connect(
            list(servers),
            **auth_options,
            name=self._node,
            connect_timeout=int(CONNECT_TIMEOUT_S),
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.2,  # type: ignore[arg-type]  # any number of seconds
            ping_interval=1,
            max_outstanding_pings=2,
            pending_size=0,  # do not buffer while disconnected: a late hint is useless
            disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_reconnected,
            error_cb=self._on_error,
        )
        self._nats = connection
        await self._nats.subscribe(
            f"{self.subject_prefix}.news.>", cb=self._handle_message, pending_msgs_limit=MAX_PENDING_MESSAGES
        )
        self._heartbeat_task = asyncio.create_task(self._send_heartbeats())

    async def close(self) -> None:
        self._closing = True
        if self._heartbeat_task is not None:
            self._heartbeat_task.cancel()
            await asyncio.gather(self._heartbeat_task, return_exceptions=True)
        for listener in list(self._listeners.values()):
            await listener.close()
        if self._nats is not None:
            with suppress(NatsError, OSError, asyncio.TimeoutError):
                await self._nats.close()

    async def publish(self, kind: str, body: Json) -> bool:
        """Publish a message to all other nodes of the tenant; return False if it was not sent.

        Nodes that miss it find the change when they poll the database.
        """
        data = self._seal({"kind": kind, "from": self._node, "body": body})
        if not self.is_connected or len(data) > MAX_MESSAGE_BYTES:
            return False
        assert self._nats is not None
        try:
            await self._nats.publish(f"{self.subject_prefix}.news.{kind}", data)
        except (NatsError, OSError):
            return False
        return True

    # -- received messages --------------------------------------------------------------------------------------------

    async def _handle_message(self, message: Msg) -> None:
        self.handle_data(message.data, message.subject.removeprefix(f"{self.subject_prefix}.news."))

    def handle_data(self, data: bytes, subject: str | None = None) -> None:
        """Decrypt a received message and pass it to the handler, unless it was received before or is our own.

        `subject` is the kind of message that was subscribed to, if any: a message of another kind is ignored.
        """
        decoded = self._unseal(data) if len(data) <= MAX_MESSAGE_BYTES else None
        if decoded is not None and self._sealer is not None and not self._is_new(data[:NONCE_BYTES]):
            return
        kind = decoded.get("kind") if isinstance(decoded, dict) and subject is None else subject
        if (
            not isinstance(decoded, dict)
            or not isinstance(kind, str)
            or decoded.get("kind") != kind
            or not isinstance(decoded.get("body"), dict)
        ):
            self._warn_unreadable(str(kind))
        elif decoded.get("from") != self._node:
            self._on_message(kind, decoded["body"])

    def _is_new(self, nonce: bytes) -> bool:
        """Return True if no message with this `nonce` (its first, random bytes) was received before."""
        now = asyncio.get_running_loop().time()
        if now - self._seen_since > MESSAGE_LIFETIME_S + MAX_CLOCK_SKEW_S or len(self._seen) >= MAX_SEEN_MESSAGES:
            self._seen, self._seen_before, self._seen_since = set(), self._seen, now
        if nonce in self._seen or nonce in self._seen_before:
            return False
        self._seen.add(nonce)
        return True

    def _warn_unreadable(self, kind: str) -> None:
        """Log a warning about an unreadable message, at most once a minute.

        A flood of messages therefore cannot flood the log.
        """
        now = asyncio.get_running_loop().time()
        if now - self._warned_at >= WARNING_INTERVAL_S:
            self._warned_at = now
            log.warning("unreadable cluster message ignored (%r): different cluster key, or clock skew?", kind[:80])

    def _seal(self, message: Json) -> bytes:
        if self._sealer is None:
            return msgspec.json.encode(message)
        return self._sealer.seal(MESSAGE_SEAL_KIND, message, MESSAGE_LIFETIME_S).encode()

    def _unseal(self, data: bytes) -> Any:
        """Return the decoded message, or None if it is malformed or sealed with another key."""
        try:
            return (
                msgspec.json.decode(data)
                if self._sealer is None
                else self._sealer.open(MESSAGE_SEAL_KIND, data.decode())
            )
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    async def _on_disconnected(self) -> None:
        if not self._closing:
            log.warning("NATS connection lost")

    async def _on_reconnected(self) -> None:
        log.info("NATS connection restored")
        self._on_gap()

    async def _on_error(self, exc: Exception) -> None:
        self.last_error = exc
        if type(exc).__name__ == "SlowConsumerError":
            self._on_gap()
        log.debug("NATS: %s", type(exc).__name__)

    # -- heartbeats ---------------------------------------------------------------------------------------------------

    async def _send_heartbeats(self) -> None:
        while True:
            if self.is_connected:
                assert self._nats is not None
                with suppress(NatsError, OSError):
                    await self._nats.publish(f"{self.subject_prefix}.beat.{self._node}", b"")
            await asyncio.sleep(HEARTBEAT_INTERVAL_S)

    def watch(self, node: str) -> AbstractAsyncContextManager[Heartbeats]:
        """Listen for the heartbeats of another node while the context is open.

        Concurrent callers share one listener.
        """
        return self._watch(node)

    @asynccontextmanager
    async def _watch(self, node: str) -> AsyncIterator[Heartbeats]:
        listener = self._listener_for(node)
        listener.users += 1
        try:
            await listener.wait_subscribed()
            yield listener
        finally:
            listener.users -= 1

    def _listener_for(self, node: str) -> HeartbeatListener:
        listener = self._listeners.get(node)
        if listener is None:
            listener = self._listeners[node] = HeartbeatListener(
                lambda: self._nats,
                f"{self.subject_prefix}.beat.{subject_token(node)}",
                lambda: self._listeners.pop(node),
            )
        return listener


def subject_token(text: str) -> str:
    """Return `text` as one token of a NATS subject, with unsafe characters escaped as `%hex%`."""
    return _SUBJECT_UNSAFE.sub(lambda found: f"%{ord(found[0]):x}%", text) or "%"


# -- NATS credentials files -------------------------------------------------------------------------------------------


def nats_auth_options(file: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the authentication options for `NatsConnection.connect` from a `.creds` file.

    Such a file has a user JWT and the seed of the Ed25519 key that proves it. The NATS client itself would need a
    second cryptography library, one without a wheel: signing the nonce with the library that we already have is
    shorter.

    The file is read again for each connection, so it may be replaced. Raises `OSError`, and `ValueError` if the file is
    not a valid `.creds` file.
    """
    _read_creds(file)
    return {
        "user_jwt_cb": lambda: bytearray(_read_creds(file)[0]),
        "signature_cb": lambda nonce: _nonce_signer(file)(nonce),
    }


def _nonce_signer(file: str | os.PathLike[str]) -> Callable[[str], bytes]:
    """Return a function that signs a NATS server nonce with the seed of a `.creds` file."""
    key = Ed25519PrivateKey.from_private_bytes(_decode_seed(_read_creds(file)[1]))
    return lambda nonce: base64.b64encode(key.sign(nonce.encode()))


def _read_creds(file: str | os.PathLike[str]) -> tuple[bytes, bytes]:
    """Return the user JWT and the seed of a NATS `.creds` file.

    Raises `OSError` if the file is not readable, `ValueError` if it is invalid.
    """
    with Path(file).open("rb") as opened:
        found = dict(_CREDS_BLOCK.findall(opened.read(_MAX_CREDS_BYTES)))
    try:
        jwt, seed = found[b"NATS USER JWT"], found[b"USER NKEY SEED"]
    except KeyError:
        raise ValueError("invalid NATS .creds file: JWT or seed missing") from None
    _decode_seed(seed)
    return jwt, seed


def _decode_seed(seed: bytes) -> bytes:
    """Return the 32 bytes of the Ed25519 key in a NATS seed.

    Raises `ValueError` if it is damaged.

    A seed is base32 of a two-byte prefix, the key and a checksum.
    """
    try:
        data = base64.b32decode(seed + b"=" * (-len(seed) % 8))
    except binascii.Error:
        data = b""
    is_seed = len(data) == 36 and data[0] & 0xF8 == _SEED_PREFIX
    if not is_seed or binascii.crc_hqx(data[:-2], 0) != int.from_bytes(data[-2:], "little"):
        raise ValueError("invalid NATS .creds file: seed damaged")
    return data[2:-2]
