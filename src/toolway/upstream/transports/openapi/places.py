"""Where the requests of each operation go. Pure.

A document says itself where its API is, so whoever can change the document could have our credentials sent to an
address of theirs. So credentials go where the operator's own words lead: to the `url` of the entry, to the origin from
which the document comes, or to what a document names that lies on this machine.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import urljoin

from toolway.config.spec import Server
from toolway.openapi.operation import Base, Document, Operation
from toolway.upstream.transports.http1.client import Target

CODE: Final = "E-OPENAPI-SERVER"


class NoPlace(Exception):
    """Why the requests of an operation can go nowhere, and what can be done about it."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.fix = fix


class Place(NamedTuple):
    target: Target  # its path is what every request's path begins with
    prefix: str  # the same without the slash at its end


def place_of(operation: Operation, document: Document, server: Server) -> Place:
    """Raises `NoPlace`."""
    assert server.openapi is not None
    if server.url is not None:
        return _place(server.url)
    named = operation.servers or document.servers
    url = _absolute(named[0] if named else Base("/"), server.openapi.url)
    place = _place(url)
    if server.openapi.url is not None and has_credentials(server):
        source = _place(server.openapi.url)
        if source.target.origin != place.target.origin:
            raise NoPlace(
                f"the document comes from {source.target.origin} and wants our credentials sent to "
                f"{place.target.origin}",
                f'if that is the API, say so in the entry: "url": "{url}"',
            )
    return place


def has_credentials(server: Server) -> bool:
    assert server.openapi is not None
    return bool(server.openapi.credentials or server.headers or server.auth is not None)


def _absolute(base: Base, source: str | None) -> str:
    if "://" in base.url.partition("?")[0]:
        return base.url
    if source is None:
        where = f"the document says only that its API is at {base.url!r}" if base.url != "/" else _NOWHERE
        raise NoPlace(where, 'give the address of the API in the entry: "url": "https://…"')
    return urljoin(source, base.url)


_NOWHERE: Final = "the document does not say where its API is"


def _place(url: str) -> Place:
    try:
        target = Target.parse(url)
    except ValueError as exc:
        fix = 'give the address of the API in the entry: "url": "https://…"'
        raise NoPlace(f"the address of the API cannot be used: {exc}", fix) from None
    if "?" in target.path or "#" in url:
        fix = 'give its address without them in the entry: "url": "https://…"'
        raise NoPlace("the address of the API has a query or a fragment", fix)
    return Place(target, target.path.rstrip("/"))
