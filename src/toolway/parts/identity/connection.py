"""Creates a gateway's identity provider from the settings, and connects it to the gateway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from toolway.parts.identity.identity_assertions import AssertionGrants
from toolway.parts.identity.introspection import Ask, create_ask
from toolway.parts.identity.provider import IdentityProvider, create_fetch
from toolway.parts.identity.settings import settings_of

if TYPE_CHECKING:
    from toolway.config.loader import LoadedConfig
    from toolway.part_api.part import PartContext
    from toolway.parts.identity.settings import IdentitySettings
    from toolway.parts.identity.signing_keys import Fetch


async def connect_configured(context: PartContext, settings: IdentitySettings) -> IdentityProvider | None:
    """Connect the configured identity provider, including its secrets, or return None if none is configured.

    Raises `ConfigError` if a secret or a library is missing.
    """
    login, hub = settings.login, context.hub
    if login is None:
        return None
    introspection, secret = login.introspection, ""
    if introspection is not None:
        secret = await hub.resolve_setting(introspection.client_secret, "login.introspection.clientSecret")
    clients = {name: await hub.resolve_setting(value, f"login.ema.clients.{name}") for name, value in login.ema.items()}
    return connect_provider(context, settings, secret=secret, clients=clients)


def connect_provider(
    context: PartContext,
    settings: IdentitySettings,
    fetch: Fetch | None = None,
    ask: Ask | None = None,
    *,
    secret: str = "",
    clients: Mapping[str, str] | None = None,
) -> IdentityProvider:
    """Accept an identity provider's tokens from now on. Return the provider, which is not started yet.

    `fetch` replaces the function that fetches the provider's documents, and `ask` the one that asks about opaque
    tokens. `secret` is the gateway's secret for those requests. `clients` has the secrets of the clients that may
    exchange identity assertions, by client id. Raises `ConfigError` if a library is missing.
    """
    login, hub, keys = settings.login, context.hub, context.api_keys
    assert login is not None
    if ask is None and login.introspection is not None:
        ask = create_ask(login.introspection, secret, lambda: hub.servers.config.network_policy)
    provider = IdentityProvider(
        login,
        settings.access,
        fetch if fetch is not None else create_fetch(login, lambda: hub.servers.config.network_policy),
        context.credentials.on_changed,
        hub.emit,
        ended_logins=keys.ended_logins if keys is not None else dict,
        ask=ask,
    )
    if clients:
        assert context.sealer is not None
        provider.assertions = AssertionGrants(login, clients, context.sealer, provider.verify_signature)
    provider.keeps_tokens = hub.servers.logins.has_on_behalf_servers
    context.credentials.verify_by(provider)
    hub.servers.logins.use_subject_tokens(provider)
    return provider


def create_provider(config: LoadedConfig) -> IdentityProvider | None:
    """Return the provider for this configuration, without its keys, or None if no login is configured.

    Raises `ConfigError` if a library is missing.
    """
    found = settings_of(config.gateway)
    if found.login is None:
        return None
    return IdentityProvider(found.login, found.access, create_fetch(found.login, lambda: config.network_policy))
