"""A NATS connection that trusts its server no more than the network: bounded, TLS as configured, persistent.

`nats-py` reads a message of any announced size, sends its credentials without TLS if the server asks for none, even to
a `tls://` URL, and closes itself forever after an error message of the server. `NatsConnection` corrects that in the
methods that process what a server sends. They are internal to `nats-py`: tests/attacks/test_nats.py fails if another
version no longer calls them.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from nats import errors
from nats.aio.client import Client
from nats.protocol import parser

MAX_RECEIVED_BYTES: Final = 8 * 1024 * 1024  # bytes of one received message; nodes send at most 256 kB at once
MAX_LINE_BYTES: Final = 128 * 1024  # bytes of a line of the protocol; INFO is the longest
MIN_PAYLOAD_BYTES: Final = 1024  # least size of messages that a usable server accepts
MAX_KNOWN_SERVERS: Final = 64  # configured ones, and those that a server names


class NatsConnection(Client):
    """NATS client for a server that may be hostile, or not the configured one."""

    def __init__(self) -> None:
        super().__init__()
        self._ps = _BoundedParser(self)

    async def _connect_to_server(self, s: Any) -> None:
        """Connect to a NATS server. Raises `CancelledError` if the task was cancelled in between.

        `nats-py` may swallow the cancellation and keep trying.
        """
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError
        await super()._connect_to_server(s)

    async def _process_connect_init(self) -> None:
        """Complete the handshake with a NATS server, or close the connection if it fails.

        An unexpected exception becomes a `nats.errors.Error`, because any other type would end all attempts to connect.
        """
        try:
            await super()._process_connect_init()
        except BaseException as exc:
            if self._transport is not None:
                self._transport.close()  # type: ignore[no-untyped-call]
            if isinstance(exc, OSError | errors.Error | asyncio.CancelledError):
                raise
            # Any other error would end all attempts to connect.
            raise errors.Error(f"nats: invalid message of the server: {type(exc).__name__}") from exc

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """Check the INFO message of a NATS server before it is used. Raises `nats.errors.Error` if it is unusable."""
        server = self._current_server
        if initial_connection and server is not None and server.uri.scheme == "tls":
            if not (info.get("tls_required") or info.get("tls_available")):
                raise errors.Error("nats: the server of a tls:// URL has no TLS")
            info["tls_required"] = True
        payload = info.setdefault("max_payload", 1024 * 1024)
        if not isinstance(payload, int) or payload < MIN_PAYLOAD_BYTES:
            raise errors.Error("nats: the server accepts no messages")
        info["max_payload"] = min(payload, MAX_RECEIVED_BYTES)
        named = info.get("connect_urls")
        free = max(0, MAX_KNOWN_SERVERS - len(self._server_pool))
        info["connect_urls"] = [each for each in named if isinstance(each, str)][:free] if named else []
        await super()._process_info(info, initial_connection)

    async def _process_err(self, err_msg: str) -> None:
        """Reconnect after an error message from the NATS server. If it only denies a subject, report it."""
        error = errors.Error(f"nats: {err_msg[:200]}")
        if parser.PERMISSIONS_ERR in err_msg:
            await self._error_cb(error)
        else:
            self._err = error
            await self._process_op_err(error)


class _BoundedParser(parser.Parser):
    """NATS parser that ends the connection if a message or line is too long or cannot be parsed."""

    async def parse(self, data: bytes = b"") -> None:
        try:
            await super().parse(data)
        except (errors.ProtocolError, OSError):
            raise
        except Exception as exc:  # any other one would end the reading, and the connection only seconds later
            raise errors.ProtocolError from exc
        is_line = self.state == parser.AWAITING_CONTROL_LINE
        if self.needed > MAX_RECEIVED_BYTES or (is_line and len(self.buf) > MAX_LINE_BYTES):
            raise errors.ProtocolError
