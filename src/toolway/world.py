"""All that the core takes from outside: randomness, waiting, and the ways to servers.

The clock is the event loop's. With a loop that has its own time and a world that has its own dice and links, one seed
is one exact run.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolway.config.spec import Server
from toolway.model import Authorizer, Call
from toolway.upstream.link import Link
from toolway.upstream.process.spawn import Spawner
from toolway.upstream.transports import link_for

LinkMaker = Callable[[str, Server, Spawner, Mapping[str, str], Authorizer | None], Link]
#: (server's name, whose link it is where it is one caller's alone, how its own is made) → the link that is used instead
LinkWrapper = Callable[[str, str, Callable[[], Link]], Link]


def _real_link(
    name: str, server: Server, spawner: Spawner, environ: Mapping[str, str], authorizer: Authorizer | None
) -> Link:
    return link_for(server, spawner, environ, authorizer)


@dataclass(frozen=True, slots=True)
class World:
    """The real one by default."""

    dice: Callable[[], float] = random.random  # uniform in [0, 1)
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    make_link: LinkMaker = _real_link  # (server's name, its definition, …) → a link that is not open yet
    wrap_link: LinkWrapper | None = None  # what stands before the links of a cluster: the server may be elsewhere
    tell: Callable[[Call], Any] | None = None  # what the links of a cluster must know of a call
    divides: Callable[[str], bool] | None = None  # whether a server of a cluster that is elsewhere knows callers apart
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    cores: int = field(default_factory=lambda: os.cpu_count() or 1)
    stall: float = 5.0  # a loop that stands still for so many seconds is told of; 0 where time is not real
