"""Network policy: resolve a host once, check every address, connect to the checked address.

    resolved = await resolve_host("docs.example", 443, server.network_policy)   # raises AddressError

`address_classes.py` detects non-public addresses in every encoding. `policy.py` has the exceptions that the
settings allow. `resolver.py` resolves a host to checked addresses, and `httpx_transport.py` does the same for
httpx2. Every connection to a host named by a config file, a server or a document uses this package, at every
redirect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolway.network.address_classes import private_reason
from toolway.network.policy import PUBLIC_ONLY, NetworkPolicy

if TYPE_CHECKING:
    from toolway.network.resolver import AddressDenied, AddressError, NameNotFound, ResolvedAddress, resolve_host

__all__ = [
    "PUBLIC_ONLY",
    "AddressDenied",
    "AddressError",
    "NameNotFound",
    "NetworkPolicy",
    "ResolvedAddress",
    "private_reason",
    "resolve_host",
]


def __getattr__(name: str) -> Any:
    """Load `resolver.py` on first access to one of its names.

    Reading a config file needs neither the resolver nor asyncio.
    """
    if name not in __all__:
        raise AttributeError(f"module 'toolway.network' has no attribute {name!r}")
    from toolway.network import resolver

    return getattr(resolver, name)
