"""Login of people at one running gateway: creates the provider from the settings, and gives it changed ones.

The settings of the login are those of the start; the groups of `toolway.access` may change at each reload.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toolway.gateway.principals import ApiKeyStore
from toolway.part_api.part import PartContext, PartRuntime
from toolway.parts.identity.identity_assertions import AssertionGrants
from toolway.parts.identity.introspection import Ask, create_ask
from toolway.parts.identity.provider import IdentityProvider, create_fetch
from toolway.parts.identity.settings import IdentitySettings, LoginSettings

if TYPE_CHECKING:
    from toolway.hub.core import HubCore
    from toolway.parts.identity.signing_keys import Fetch

_NO_SETTINGS = IdentitySettings()
_log = logging.getLogger("toolway.gateway")


class IdentityRuntime(PartRuntime):
    """Login of people at one gateway. `login` is the provider whose tokens are accepted; None if there is none."""

    def __init__(self, context: PartContext) -> None:
        self._context = context
        self._settings = self._next = _NO_SETTINGS
        self.login: IdentityProvider | None = None

    @property
    def hub(self) -> HubCore:
        return self._context.hub

    @property
    def api_keys(self) -> ApiKeyStore | None:
        """Keys of the gateway, with which ended logins are stored; None if authentication is off."""
        return self._context.api_keys

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self, settings: Any) -> None:
        """Use the first settings. The provider follows in `prepare`: its secrets may be in a keychain."""
        self._settings = self._next = settings if settings is not None else _NO_SETTINGS

    async def prepare(self) -> None:
        """Accept tokens of the identity provider from now on, if one is configured.

        The provider may be down: API keys are accepted meanwhile, so this does not wait for it. Raises `ConfigError` if
        the settings of the provider cannot be used.
        """
        settings, hub = self._settings.login, self._context.hub
        if settings is None:
            return
        introspection, secret = settings.introspection, ""
        if introspection is not None:
            secret = await hub.resolve_setting(introspection.client_secret, "login.introspection.clientSecret")
        clients = {
            name: await hub.resolve_setting(value, f"login.ema.clients.{name}") for name, value in settings.ema.items()
        }
        self.create_login(settings, self._settings.access, secret=secret, clients=clients).start()
        if not self._settings.access and not settings.admins:
            _log.warning("people who log in see no tools: toolway.access is empty")

    def create_login(
        self,
        settings: LoginSettings,
        access: Mapping[str, Sequence[str]],
        fetch: Fetch | None = None,
        ask: Ask | None = None,
        *,
        secret: str = "",
        clients: Mapping[str, str] | None = None,
    ) -> IdentityProvider:
        """Accept access tokens of an identity provider from now on, and return the provider, which is not started yet.

        `fetch` replaces the function that fetches its documents, `ask` the one that asks it about opaque tokens.
        `secret` is the gateway's secret for such requests. `clients` are the secrets of clients that may exchange
        identity assertions, by their ids. Raises `ConfigError` if a library is missing.
        """
        context = self._context
        hub, keys = context.hub, context.api_keys
        if ask is None and settings.introspection is not None:
            ask = create_ask(settings.introspection, secret, lambda: hub.network_policy)
        login = IdentityProvider(
            settings,
            access,
            fetch if fetch is not None else create_fetch(settings, lambda: hub.network_policy),
            context.credentials.on_changed,
            hub.emit,
            ended_logins=keys.ended_logins if keys is not None else dict,
            ask=ask,
        )
        if clients:
            assert context.sealer is not None
            login.assertions = AssertionGrants(settings, clients, context.sealer, login.verify_signature)
        login.keeps_tokens = hub.has_on_behalf_servers
        hub.use_subject_tokens(login)
        context.credentials.verify_by(login)
        self.login = login
        return login

    def apply(self, settings: Any) -> None:
        """Take new settings. They are used once the servers of the same configuration are."""
        self._next = settings if settings is not None else _NO_SETTINGS

    def on_servers_changed(self) -> None:
        """Use the settings that were applied: the groups of `toolway.access`. All tokens are then verified again."""
        before, self._settings = self._settings, self._next
        if before.login != self._settings.login:
            _log.warning("login settings changed in the file: restart the gateway to apply them")
        if self.login is not None:
            self.login.set_access(self._settings.access)

    async def close(self) -> None:
        """Stop fetching the keys of the provider."""
        if self.login is not None:
            await self.login.close()
