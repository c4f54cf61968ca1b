"""Where the document of an API comes from: an address, a file or the entry itself; and again, where it has changed.

What was fetched is kept on disk, so that a start need not fetch it again where it is the same, and is possible where
it cannot be fetched. Whatever comes is bounded before it is read.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Mapping
from hashlib import sha256
from typing import Final, Protocol

import msgspec

from toolway.addresses.aside import in_thread
from toolway.config.spec import OpenApi, Server
from toolway.model import Certainty
from toolway.openapi.reading import MAX_BYTES
from toolway.upstream.link import Fault
from toolway.upstream.transports.http.verdict import excerpt
from toolway.upstream.transports.http1.client import Client, HttpFault, Response, Target, header_block
from toolway.upstream.transports.openapi import verdict
from toolway.upstream.transports.openapi.kept import Kept, Shelf

CODE: Final = "E-OPENAPI-DOCUMENT"
MAX_REDIRECTS: Final = 3
FILE_PAUSE: Final = 5.0  # seconds between two looks at a file
_PASSING: Final = frozenset({408, 425, 429})


class Source(Protocol):
    """One document. `note` says what a person should know about how it was had."""

    where: str
    pause: float  # seconds before it is worth looking again; 0 = never
    note: str

    async def first(self) -> bytes:
        """Raises `Fault`."""
        ...

    async def again(self) -> bytes | None:
        """None where it is the same. Raises `Fault`."""
        ...


def source_of(server: Server, client: Client, environ: Mapping[str, str]) -> Source:
    openapi = server.openapi
    assert openapi is not None
    if openapi.url is not None:
        return _Address(server, openapi, client, environ)
    return _File(openapi) if openapi.file is not None else _Inline(openapi)


class _Inline:
    where = "the document in the entry"
    pause = 0.0
    note = ""

    def __init__(self, openapi: OpenApi) -> None:
        self._document = openapi.document

    async def first(self) -> bytes:
        return msgspec.json.encode(self._document)

    async def again(self) -> bytes | None:
        return None


class _File:
    note = ""

    def __init__(self, openapi: OpenApi) -> None:
        assert openapi.file is not None
        self.where = openapi.file
        self.pause = min(FILE_PAUSE, openapi.refresh)
        self._seen: tuple[int, ...] = ()

    async def first(self) -> bytes:
        data = await in_thread(self._read)
        if data is None:  # it is read whatever was seen before
            self._seen = ()
            data = await in_thread(self._read)
        assert data is not None
        return data

    async def again(self) -> bytes | None:
        return await in_thread(self._read)

    def _read(self) -> bytes | None:
        try:
            with open(os.open(self.where, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                found = os.fstat(file.fileno())
                seen = (found.st_ino, found.st_size, found.st_mtime_ns)
                if not stat.S_ISREG(found.st_mode):
                    raise bad(f"{self.where} is no ordinary file", "name the file of the document")
                if seen == self._seen:
                    return None
                data = file.read(MAX_BYTES + 1)
        except OSError as exc:
            raise bad(f"{self.where} cannot be read: {exc.strerror}", "correct `openapi.file` in the entry") from None
        self._seen = seen
        return data


class _Address:
    def __init__(self, server: Server, openapi: OpenApi, client: Client, environ: Mapping[str, str]) -> None:
        assert openapi.url is not None
        self.where = openapi.url.partition("?")[0]
        self.pause = openapi.refresh
        self.note = ""
        self._client = client
        self._shelf = Shelf.of(environ, openapi.url)
        self._known: dict[str, str] = {}  # headers that ask for another version than the last
        self._digest = b""  # of the last
        try:
            self._target = Target.parse(openapi.url)
            self._headers = _own_headers(server, openapi, self._target)
        except ValueError as exc:
            raise Fault(str(exc), Certainty.C0, code="E-HTTP-CONFIG", fix="correct `openapi.url`") from None

    async def first(self) -> bytes:
        kept = await in_thread(self._shelf.load) if self._shelf is not None else None
        if kept is not None:
            self._remember(kept)
        try:
            data = await self.again()
        except Fault as fault:
            if kept is None or not _may_pass(fault):
                raise
            self.note = f"the document is one that was kept, because {fault.reason}"
            return kept.data
        if data is None:
            assert kept is not None, "nothing was known that could be the same"
            return kept.data
        return data

    async def again(self) -> bytes | None:
        try:
            fetched = await self._fetch()
        except HttpFault as exc:
            reason = f"the document cannot be fetched: {exc.reason}"
            raise Fault(reason, Certainty.C0, code=exc.code, fix=exc.fix) from None
        self.note = ""
        before = self._digest
        if fetched is None or self._remember(fetched) == before:
            return None
        if self._shelf is not None:
            await in_thread(self._shelf.save, fetched)
        return fetched.data

    def _remember(self, kept: Kept) -> bytes:
        self._known, self._digest = kept.conditions, sha256(kept.data).digest()
        return self._digest

    async def _fetch(self) -> Kept | None:
        target = self._target
        known = self._known
        for _ in range(MAX_REDIRECTS + 1):
            headers = header_block({**self._headers, **known})
            async with self._client.send("GET", target, [headers]) as response:
                if response.status == 304 and known:
                    return None
                if not 300 <= response.status < 400 or response.status == 304:
                    return await _document(response, self.where)
                target = self._moved(target, response)
                response.finish_soon()
        raise bad(f"{self.where} redirects again and again", "correct `openapi.url`")

    def _moved(self, target: Target, response: Response) -> Target:
        try:
            new = target.join(response.headers.get("location", ""))
        except ValueError:
            new = None
        if new is None or new.origin != target.origin:
            where = f"{new.origin}{new.path}" if new is not None else "nowhere"
            raise bad(f"{self.where} redirects to {where}", "if you trust that address, make it `openapi.url`")
        return new


async def _document(response: Response, where: str) -> Kept:
    if response.status != 200:
        body = b""
        try:
            async with asyncio.timeout(2.0):
                body = await response.chunk()
        except (HttpFault, TimeoutError):
            pass
        said = f"{where} answers {verdict.words(response.status)}{excerpt(body)}"
        raise bad(said, "correct `openapi.url`, or `openapi.headers` where it wants a token", status=response.status)
    try:
        data = await response.read(MAX_BYTES)
    except HttpFault as exc:
        if exc.code != "E-HTTP-LIMIT":
            raise
        raise too_large(where) from None
    return Kept(data, response.headers.get("etag", ""), response.headers.get("last-modified", ""))


def _own_headers(server: Server, openapi: OpenApi, target: Target) -> dict[str, str]:
    """Those of the entry go along only where the operator himself said that the API is at the same origin."""
    headers = {"Accept": "application/json, application/yaml;q=0.9, */*;q=0.5", "Accept-Encoding": "identity"}
    if server.url is not None and Target.parse(server.url).origin == target.origin:
        headers.update(server.headers)
    return {**headers, **openapi.headers}


def _may_pass(fault: Fault) -> bool:
    """Whether a failure says nothing about the document."""
    return fault.status is None or fault.status >= 500 or fault.status in _PASSING


def bad(reason: str, fix: str, *, status: int | None = None) -> Fault:
    return Fault(reason, Certainty.C0, code=CODE, fix=fix, status=status)


def too_large(where: str) -> Fault:
    return bad(f"{where} is larger than {MAX_BYTES >> 20} MiB", "cut the document to what is needed")
