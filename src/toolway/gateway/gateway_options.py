"""What a process provides to its gateway, besides the hub."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from toolway.config.admission.entry import AdmissionPolicy
from toolway.config.settings import InvisibleCharacters
from toolway.gateway.tool_filter import ToolFilter
from toolway.types import Json

if TYPE_CHECKING:
    from toolway.gateway.admin.config import ConfigHistory
    from toolway.gateway.admin.dashboard import EndedSessions
    from toolway.gateway.admin.overview import RunDoctor
    from toolway.gateway.mcp.pending_input import PendingCalls
    from toolway.gateway.rate_limit import RateLimiter
    from toolway.http.limits import ServerLimits


class LiveSettings(msgspec.Struct, frozen=True):
    """Settings that a gateway reads on each use, because a reload may change them."""

    toolsets: Callable[[], Mapping[str, ToolFilter]] = dict
    admission: Callable[[], AdmissionPolicy] = AdmissionPolicy
    invisible_characters: Callable[[], InvisibleCharacters] = lambda: "remove"
    drops_nulls: Callable[[], bool] = lambda: False


class ConnectionRules(msgspec.Struct, frozen=True):
    """Which connections a gateway accepts, and how much each may use."""

    hosts: Iterable[str] = ()
    origins: Iterable[str] = ()
    local_token_from: Iterable[str] = ()  # networks besides this machine from which its token is accepted
    limits: ServerLimits | None = None


class ClientState(msgspec.Struct, frozen=True):
    """Where a gateway remembers its clients between requests. None keeps them in memory."""

    pending_calls: PendingCalls | None = None
    rate_limiter: RateLimiter | None = None
    ended_sessions: EndedSessions | None = None


async def _reload_nothing() -> Json:
    return {"changed": []}


class ProcessControl(msgspec.Struct, frozen=True):
    """What an administrator can do with a gateway's process: reload, edit the config, check servers."""

    reload: Callable[[], Awaitable[Json]] = _reload_nothing
    config_history: ConfigHistory | None = None
    doctor: RunDoctor | None = None
