"""A document and an entry → what calls need: for each tool its operation, where it goes and what always goes along."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Final

from toolway._version import __version__
from toolway.addresses.aside import in_thread
from toolway.config.spec import OpenApi, Picks, Server
from toolway.model import Certainty, Json
from toolway.openapi import choice
from toolway.openapi.operation import Document, Operation
from toolway.openapi.problems import BadDocument
from toolway.secrets import remember
from toolway.upstream.link import Fault
from toolway.upstream.process.spawn import Spawner
from toolway.upstream.transports.http1.client import HeaderBlock, Origin, header_block
from toolway.upstream.transports.openapi import apart, documents, places
from toolway.upstream.transports.openapi.credentials import stamp

_SHOWN: Final = 20  # notes about single operations; the rest is counted
_NEVER: Final = frozenset({"authorization", "host", "user-agent"})  # no argument of a call sets these
_READER: Final = "toolway.openapi.load"  # comes with a reader of YAML, which takes a while to load


@dataclass(frozen=True, slots=True)
class Way:
    """One operation, and all of its requests that does not depend on the arguments. Holds credentials."""

    operation: Operation
    origin: Origin
    prefix: str  # what every path begins with
    head: HeaderBlock = field(repr=False)
    fixed: frozenset[str] = field(repr=False)  # headers that arguments do not change, in lower case
    query: str = field(repr=False)
    cookie: str = field(repr=False)
    missing: tuple[str, ...]  # credentials that the document wants, and we have none


@dataclass(frozen=True, slots=True)
class Api:
    """What a document says, for one entry."""

    title: str
    version: str
    instructions: str
    origin: Origin  # where a sign of life is looked for
    tools: list[Json] = field(repr=False)
    ways: Mapping[str, Way] = field(repr=False)
    notes: tuple[str, ...]  # for a person


async def read_api(data: bytes, where: str, server: Server, spawner: Spawner, environ: Mapping[str, str]) -> Api:
    """Raises `Fault`. Nothing of it is done on the loop: a large document takes seconds."""
    assert server.openapi is not None
    choose, given = _choice(server.openapi), _given(server)
    try:
        document = await _read(data, where, choose, given, spawner, environ)
    except BadDocument as exc:
        raise documents.bad(exc.reason, exc.fix or "correct the document") from None
    return await in_thread(_api, document, where, server)


async def _read(
    data: bytes, where: str, choose: choice.Choice, given: frozenset[str], spawner: Spawner, environ: Mapping[str, str]
) -> Document:
    if len(data) > apart.LARGE:
        with suppress(apart.NotApart):  # as in a program that is one file: then it is slower for the others
            return await apart.read_apart(data, where, choose, given, spawner, environ)
    return await in_thread(_load, data, where, choose, given)


def _load(data: bytes, where: str, choose: choice.Choice, given: frozenset[str]) -> Document:
    document: Document = import_module(_READER).load(data, where=where, choose=choose, given=given)
    return document


def _api(document: Document, where: str, server: Server) -> Api:
    assert server.openapi is not None
    ways: dict[str, Way] = {}
    refused: list[tuple[Operation, places.NoPlace]] = []
    for operation in document.operations:
        try:
            ways[operation.name] = _way(operation, document, server)
        except places.NoPlace as exc:
            refused.append((operation, exc))
    if not ways:
        raise _nothing(document, where, refused)
    for each in server.openapi.credentials:
        remember(each.value)  # what is made of it is hidden, too
    tools = [way.operation.tool for way in ways.values()]
    if not server.openapi.outputs:
        tools = [{key: value for key, value in tool.items() if key != "outputSchema"} for tool in tools]
    return Api(
        title=document.title,
        version=document.version,
        instructions=f"{document.title} {document.version}".strip(),
        origin=next(iter(ways.values())).origin,
        tools=tools,
        ways=ways,
        notes=(*_wanting(ways.values()), *_notes(document, refused)),
    )


def _way(operation: Operation, document: Document, server: Server) -> Way:
    assert server.openapi is not None
    place = places.place_of(operation, document, server)
    stamped, missing = stamp(operation, document.security_schemes, server.openapi.credentials)
    headers = {"Accept": operation.accept or "*/*", "User-Agent": f"toolway/{__version__}"}
    headers["Accept-Encoding"] = "gzip, deflate" if server.limits.compression else "identity"
    configured = {**server.headers, **stamped.headers}
    names = {name.lower() for name in configured}
    headers = {name: value for name, value in headers.items() if name.lower() not in names}
    try:
        head = header_block({**headers, **configured})
    except ValueError as exc:
        fix = "correct `headers` or `openapi.security` in the server's entry"
        raise Fault(str(exc), Certainty.C0, code="E-HTTP-CONFIG", fix=fix) from None
    return Way(
        operation=operation,
        origin=place.target.origin,
        prefix=place.prefix,
        head=head,
        fixed=frozenset(names | {name.lower() for name in headers} | _NEVER),
        query=stamped.query,
        cookie=stamped.cookie,
        missing=missing if server.auth is None and "authorization" not in names else (),
    )


def _nothing(document: Document, where: str, refused: list[tuple[Operation, places.NoPlace]]) -> Fault:
    if refused:
        _, first = refused[0]
        return Fault(first.reason, Certainty.C0, code=places.CODE, fix=first.fix)
    if document.set_aside:
        first_aside = document.set_aside[0]
        return documents.bad(f"no operation of {where} can be a tool: {first_aside.reason}", "correct the document")
    if document.left_out:
        return documents.bad(
            f"none of the {document.left_out} operations of {where} is wanted", "change `include` or `exclude`"
        )
    return documents.bad(f"{where} has no operations", "check that it is the document of an API")


def _wanting(ways: Iterable[Way]) -> list[str]:
    """Credentials that the document wants, and the entry does not have."""
    counts = Counter(name for way in ways for name in way.missing)
    return [
        f"{count} operation{'s want' if count > 1 else ' wants'} the credential {name}, and the entry has none: add "
        f'"security": {{"{name}": "${{keyring:NAME}}"}} to its `openapi`'
        for name, count in counts.most_common(5)
    ]


def _notes(document: Document, refused: list[tuple[Operation, places.NoPlace]]) -> list[str]:
    aside = [f"{each.method} {each.path} is no tool: {each.reason}" for each in document.set_aside]
    aside += [f"{each.method} {each.path} is no tool: {problem.reason}" for each, problem in refused]
    notes = [*aside[:_SHOWN], *document.warnings[:_SHOWN]]
    left = max(0, len(aside) - _SHOWN) + max(0, len(document.warnings) - _SHOWN)
    return [*notes, f"and {left} more like these"] if left else notes


def _choice(openapi: OpenApi) -> choice.Choice:
    return choice.Choice(_picks(openapi.include), _picks(openapi.exclude))


def _given(server: Server) -> frozenset[str]:
    """Parameters of requests that the entry itself sets."""
    assert server.openapi is not None
    keys = {each.name for each in server.openapi.credentials if each.kind == "apiKey"}
    header = {server.openapi.key_header} if server.openapi.key_header is not None else set()
    return frozenset(keys | {name.lower() for name in (*keys, *server.headers, *header)})


def _picks(picks: Picks) -> choice.Picks:
    return choice.Picks(tags=picks.tags, paths=picks.paths, methods=picks.methods, operations=picks.operations)
