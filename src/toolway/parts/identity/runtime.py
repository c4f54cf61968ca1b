"""User login at a running gateway: connects the provider and updates its settings.

The login settings are fixed at startup, but the groups in `toolway.access` may change on each reload. A gateway without
a login loads none of this code.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toolway.part_api.part import Part, PartContext, PartRuntime

if TYPE_CHECKING:
    from toolway.parts.identity.provider import IdentityProvider
    from toolway.parts.identity.settings import IdentitySettings

_log = logging.getLogger("toolway.gateway")


class IdentityRuntime(PartRuntime):
    """User login at one gateway. `login` is the provider whose tokens are accepted, or None."""

    def __init__(self, part: Part, context: PartContext) -> None:
        self.context = context
        self.login: IdentityProvider | None = None
        self._settings: IdentitySettings | None = None
        self._applied: IdentitySettings | None = None  # used once the servers of the same configuration are

    def start(self, settings: Any) -> None:
        """Use the first settings. `prepare` connects the provider later, because its secrets may be in a keychain."""
        self._settings = self._applied = settings

    async def prepare(self) -> None:
        """Accept the identity provider's tokens from now on, if one is configured.

        This does not wait for the provider: if it is down, API keys still work. Raises `ConfigError` if the provider's
        settings cannot be used.
        """
        settings = self._settings
        if settings is None or settings.login is None:
            return
        from toolway.parts.identity.connection import connect_configured

        self.login = await connect_configured(self.context, settings)
        assert self.login is not None
        self.login.set_access(self._access)  # they may have changed by now
        self.login.start()
        if not self._access and not settings.login.admins:
            _log.warning("users who log in see no tools: toolway.access is empty")

    def apply(self, settings: Any) -> None:
        self._applied = settings

    def on_servers_changed(self) -> None:
        """Use the new groups in `toolway.access`, and verify all tokens again."""
        before, self._settings = self._settings, self._applied
        if _login_of(before) != _login_of(self._settings):
            _log.warning("login settings changed in the file: restart the gateway to apply them")
        if self.login is not None:
            self.login.set_access(self._access)

    @property
    def _access(self) -> Mapping[str, Sequence[str]]:
        return self._settings.access if self._settings is not None else {}

    async def close(self) -> None:
        """Stop fetching the provider's keys."""
        if self.login is not None:
            await self.login.close()


def _login_of(settings: IdentitySettings | None) -> object:
    return settings.login if settings is not None else None
