"""Which addresses a model may be asked at, and the HTTP clients that reach no other address.

A provider's API key goes to the provider's own address, which may be set in the environment next to the key
(`OPENAI_BASE_URL`), and to addresses that you listed: in `toolway.modelUrls`, by `--base-url`, or in a program
by `Agent(base_url=…)`. A workflow or an agent of a file that names another address is not asked at all.

Every client resolves the host itself and checks its addresses (`toolway.network`).
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from toolway.agents.errors import AgentError
from toolway.network.listed_urls import is_listed
from toolway.network.policy import PUBLIC_ONLY, NetworkPolicy

if TYPE_CHECKING:
    import httpx2

    from toolway.agents.settings import AgentSettings

ADDRESS_CODE: Final = "E-AGENT-ADDRESS"


@dataclass(frozen=True, slots=True)
class ModelAccess:
    """Which addresses may be used for models: those listed in the settings, and the network policy."""

    urls: tuple[str, ...] = ()
    policy: NetworkPolicy = PUBLIC_ONLY

    def listing(self, urls: Iterable[str]) -> ModelAccess:
        """Return a copy that allows more listed addresses."""
        return ModelAccess((*self.urls, *urls), self.policy)

    def policy_for(self, settings: AgentSettings, own_url: Callable[[], str]) -> NetworkPolicy:
        """Return the network policy for the requests to the model of an agent.

        A listed address may be one of this machine or network, as the URL of a server entry may. `own_url` returns the
        provider's own address. Raises `AgentError` if the agent names an address that is neither.
        """
        url = settings.base_url
        if url is None:
            return self.policy.allowing(own_url())
        if is_listed(url, self.urls):
            return self.policy.allowing(url)
        own = own_url()
        if own and is_listed(url, [own]):
            return self.policy.allowing(own)
        raise AgentError(
            f"refusing to use {settings.model} at {url[:200]}",
            detail="that is neither the provider's own address nor in toolway.modelUrls, so it gets no API key",
            hint=f'if you trust it, list it in your config file: "toolway": {{"modelUrls": ["{url[:200]}"]}}',
            code=ADDRESS_CODE,
        )


def base_urls(settings: AgentSettings) -> list[str]:
    """Return the addresses that an agent, and the agents inside it, name."""
    inner = [url for each in settings.agents.values() for url in base_urls(each.settings)]
    return [settings.base_url, *inner] if settings.base_url is not None else inner


def create_http_client(policy: NetworkPolicy) -> httpx2.AsyncClient:
    """Return an HTTP client for the SDK of a provider that connects to checked addresses only."""
    from pydantic_ai.models import create_async_httpx2_client

    from toolway.network.httpx_transport import PinnedTransport

    return create_async_httpx2_client(transport=PinnedTransport(policy, _ssl_context()))


@cache
def _ssl_context() -> ssl.SSLContext:
    return ssl.create_default_context()
