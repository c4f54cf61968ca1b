"""Groups of related hub options: everything `HubCore` takes besides servers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from toolway.auth.token_store import DEFAULT_TOKENS, TokenStore
from toolway.network.policy import PUBLIC_ONLY, NetworkPolicy

if TYPE_CHECKING:
    from toolway.auth.token_manager import LoginCallback
    from toolway.config.schema import RetryPolicy, Timeout
    from toolway.config.settings import AlertSettings, AuditSettings
    from toolway.hub.server_logs import LogListener


class ServerDefaults(msgspec.Struct, frozen=True):
    """Defaults for servers whose entry does not say otherwise, and the addresses that all servers may use."""

    timeout: float | Timeout | None = None
    retry: RetryPolicy | None = None
    network_policy: NetworkPolicy = PUBLIC_ONLY


class LoginOptions(msgspec.Struct, frozen=True):
    """How users log in to servers, and where their tokens are kept (in memory if the store is None)."""

    callback: LoginCallback | None = None
    tokens: TokenStore | None = DEFAULT_TOKENS


class Reporting(msgspec.Struct, frozen=True):
    """Where a hub reports what happens: audit log, alerts, and server log messages."""

    audit_log: str | os.PathLike[str] | AuditSettings | None = None
    alerts: str | os.PathLike[str] | AlertSettings | None = None
    log_callback: LogListener | None = None
    log_level: str | None = None
