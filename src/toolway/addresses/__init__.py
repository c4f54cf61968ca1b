"""Which addresses we connect to: resolve once, check every address, connect to the checked one.

    pinned = await resolve("docs.example", 443, server.reach)   # raises AddressError

`kinds.py` knows the addresses that lead inside, whatever they are dressed as; `policy.py` who may go there all the
same; `resolving.py` makes checked addresses of a name; `pinned.py` is that for httpx2. Whoever opens a connection to
a place that a file, a server or a document named does it this way, at every hop.
"""

from toolway.addresses.kinds import check
from toolway.addresses.policy import PUBLIC, Addresses
from toolway.addresses.resolving import AddressError, AddressRefused, NameNotFound, Pinned, resolve

__all__ = ["PUBLIC", "AddressError", "AddressRefused", "Addresses", "NameNotFound", "Pinned", "check", "resolve"]
