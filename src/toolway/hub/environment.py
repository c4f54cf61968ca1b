"""What a hub needs from the outside world: randomness, sleep, variables, and transports, all replaceable.

The clock is the event loop's. A test with a simulated loop, random source, and transports is reproducible from a
single seed.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from toolway.config.schema import Server
from toolway.types import Authorizer, Call
from toolway.upstream.process.spawner import Spawner
from toolway.upstream.status import describe_time
from toolway.upstream.transport import Transport
from toolway.upstream.transports import create_transport

TransportFactory = Callable[[str, Server, Spawner, Mapping[str, str], Authorizer | None], Transport]
#: (server name, caller id of a per-caller connection or "", factory of the local transport) → transport to use instead
TransportWrapper = Callable[[str, str, Callable[[], Transport]], Transport]


def _create_real_transport(
    name: str, server: Server, spawner: Spawner, environ: Mapping[str, str], authorizer: Authorizer | None
) -> Transport:
    return create_transport(server, spawner, environ, authorizer)


class HubEnvironment(msgspec.Struct, frozen=True):
    """A hub's dependencies on the outside world. The defaults are real; tests replace them."""

    random: Callable[[], float] = random.random  # uniform in [0, 1)
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    wall_clock: Callable[[], float] = time.time  # seconds since 1970, for times in messages
    create_transport: TransportFactory = _create_real_transport  # (server name, definition, …) → unopened transport
    wrap_transport: TransportWrapper | None = (
        None  # in a cluster: wraps each transport, because the server may run elsewhere
    )
    forwarding_info: Callable[[Call], Any] | None = None  # in a cluster: data about a call for the transports
    per_caller_in_cluster: Callable[[str], bool] | None = (
        None  # in a cluster: True if a remote server separates callers
    )
    environ: Mapping[str, str] = msgspec.field(default_factory=lambda: os.environ)
    cores: int = msgspec.field(default_factory=lambda: os.cpu_count() or 1)
    stall_threshold: float = 5.0  # seconds after which a blocked loop is reported; 0 in simulations

    def describe_time(self, seconds: float) -> str:
        """Return the time of day that is `seconds` from now, for messages."""
        return describe_time(seconds, self.wall_clock())
