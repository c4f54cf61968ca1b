"""Which addresses we connect to: resolve once, check every address, connect to the checked one.

    pinned = await resolve("docs.example", 443, server.reach)   # raises AddressError

`kinds.py` knows the addresses that lead inside, whatever they are dressed as; `policy.py` who may go there all the
same; `resolving.py` makes checked addresses of a name; `pinned.py` is that for httpx2. Whoever opens a connection to
a place that a file, a server or a document named does it this way, at every hop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolway.addresses.kinds import check
from toolway.addresses.policy import PUBLIC, Addresses

if TYPE_CHECKING:
    from toolway.addresses.resolving import AddressError, AddressRefused, NameNotFound, Pinned, resolve

__all__ = ["PUBLIC", "AddressError", "AddressRefused", "Addresses", "NameNotFound", "Pinned", "check", "resolve"]


def __getattr__(name: str) -> Any:
    """What resolves is loaded when it is first used: a file is read without it, and without asyncio."""
    if name not in __all__:
        raise AttributeError(f"module 'toolway.addresses' has no attribute {name!r}")
    from toolway.addresses import resolving

    return getattr(resolving, name)
