"""Where an OpenAPI document comes from: a URL, a file, or the entry itself. It is checked for changes.

A fetched document is cached on disk. So it is not fetched again if it has not changed, and a start works even if
fetching fails. The size of all input is limited before it is parsed.
"""

from __future__ import annotations

import asyncio
import os
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec

import toolway
from toolway._async import run_in_daemon_thread
from toolway._os import O_NONBLOCK, O_PRIVATE, cache_folder
from toolway.config.schema import Server
from toolway.http.client import HttpClient, HttpError, HttpResponse, HttpTarget, encode_headers
from toolway.parts.openapi import responses
from toolway.parts.openapi.document import subprocess_main
from toolway.parts.openapi.document.models import ApiDocument, InvalidDocument, Operation, OperationSelection
from toolway.parts.openapi.document.parser import MAX_DOCUMENT_BYTES
from toolway.parts.openapi.settings import OpenApi, settings_of
from toolway.types import Certainty
from toolway.upstream.process.pipes import read_all, write_all
from toolway.upstream.process.spawner import Process, Spawner, SpawnError, build_environment
from toolway.upstream.transport import TransportError
from toolway.upstream.transports.http_responses import body_excerpt

DOCUMENT_ERROR_CODE: Final = "E-OPENAPI-DOCUMENT"
MAX_REDIRECTS: Final = 3
FILE_CHECK_INTERVAL_S: Final = 5.0  # seconds between two checks of a file
_TRANSIENT_STATUSES: Final = frozenset({408, 425, 429})


class DocumentSource(Protocol):
    """The source of one OpenAPI document. `note` is a message for the user about the last load."""

    location: str
    check_interval: float  # seconds until the next check for a change; 0 = never
    note: str

    async def load(self) -> bytes:
        """Return the OpenAPI document. Raises `TransportError` if it cannot be read or fetched."""
        ...

    async def reload(self) -> bytes | None:
        """Return the OpenAPI document if it has changed since the last load, or else None.

        Raises `TransportError` if it cannot be read or fetched.
        """
        ...


def create_document_source(server: Server, client: HttpClient, environ: Mapping[str, str]) -> DocumentSource:
    """Return the source of the OpenAPI document that the server entry configures."""
    openapi = settings_of(server)
    if openapi.url is not None:
        return _UrlSource(server, openapi, client, environ)
    return _FileSource(openapi) if openapi.file is not None else _InlineSource(openapi)


class _InlineSource:
    """OpenAPI document inside the server entry; it never changes."""

    location = "the document in the entry"
    check_interval = 0.0
    note = ""

    def __init__(self, openapi: OpenApi) -> None:
        self._document = openapi.document

    async def load(self) -> bytes:
        return msgspec.json.encode(self._document)

    async def reload(self) -> bytes | None:
        return None


class _FileSource:
    """An OpenAPI document in a file, which is read again when its inode, size, or time changes."""

    note = ""

    def __init__(self, openapi: OpenApi) -> None:
        assert openapi.file is not None
        self.location = openapi.file
        self.check_interval = min(FILE_CHECK_INTERVAL_S, openapi.refresh)
        self._seen_version: tuple[int, ...] = ()

    async def load(self) -> bytes:
        data = await run_in_daemon_thread(self._read)
        if data is None:  # unchanged, but the caller needs the data
            self._seen_version = ()
            data = await run_in_daemon_thread(self._read)
        assert data is not None
        return data

    async def reload(self) -> bytes | None:
        return await run_in_daemon_thread(self._read)

    def _read(self) -> bytes | None:
        try:
            with open(os.open(self.location, os.O_RDONLY | O_NONBLOCK), "rb") as file:
                found = os.fstat(file.fileno())
                version = (found.st_ino, found.st_size, found.st_mtime_ns)
                if not stat.S_ISREG(found.st_mode):
                    raise document_error(f"{self.location} is not a regular file", "set the document's file")
                if version == self._seen_version:
                    return None
                data = file.read(MAX_DOCUMENT_BYTES + 1)
        except OSError as exc:
            raise document_error(
                f"{self.location} cannot be read: {exc.strerror}", "fix `openapi.file` in the entry"
            ) from None
        self._seen_version = version
        return data


class _UrlSource:
    """OpenAPI document at a URL, fetched with conditional requests and cached on disk."""

    def __init__(self, server: Server, openapi: OpenApi, client: HttpClient, environ: Mapping[str, str]) -> None:
        assert openapi.url is not None
        self.location = openapi.url.partition("?")[0]
        self.check_interval = openapi.refresh
        self.note = ""
        self._client = client
        self._cache = DocumentCache.for_url(environ, openapi.url)
        self._conditions: dict[str, str] = {}  # conditional request headers of the last document
        self._digest = b""  # of the last document
        try:
            self._target = HttpTarget.parse(openapi.url)
            self._headers = _fetch_headers(server, openapi, self._target)
        except ValueError as exc:
            raise TransportError(str(exc), Certainty.NOT_SENT, code="E-HTTP-CONFIG", hint="fix `openapi.url`") from None

    async def load(self) -> bytes:
        cached = await run_in_daemon_thread(self._cache.load) if self._cache is not None else None
        if cached is not None:
            self._set_current(cached)
        try:
            data = await self.reload()
        except TransportError as error:
            if cached is None or not _is_transient(error):
                raise
            self.note = f"the document is a cached copy, because {error.reason}"
            return cached.data
        if data is None:
            assert cached is not None, "304 without a cached document"
            return cached.data
        return data

    async def reload(self) -> bytes | None:
        try:
            fetched = await self._fetch()
        except HttpError as exc:
            reason = f"the document cannot be fetched: {exc.reason}"
            raise TransportError(reason, Certainty.NOT_SENT, code=exc.code, hint=exc.hint) from None
        self.note = ""
        before = self._digest
        if fetched is None or self._set_current(fetched) == before:
            return None
        if self._cache is not None:
            await run_in_daemon_thread(self._cache.save, fetched)
        return fetched.data

    def _set_current(self, document: CachedDocument) -> bytes:
        self._conditions, self._digest = document.conditions, sha256(document.data).digest()
        return self._digest

    async def _fetch(self) -> CachedDocument | None:
        target = self._target
        conditions = self._conditions
        for _ in range(MAX_REDIRECTS + 1):
            headers = encode_headers({**self._headers, **conditions})
            async with self._client.send("GET", target, [headers]) as response:
                if response.status == 304 and conditions:
                    return None
                if not 300 <= response.status < 400 or response.status == 304:
                    return await _read_document(response, self.location)
                target = self._follow_redirect(target, response)
                response.finish_soon()
        raise document_error(f"{self.location} redirects too many times", "fix `openapi.url`")

    def _follow_redirect(self, target: HttpTarget, response: HttpResponse) -> HttpTarget:
        try:
            new = target.join(response.headers.get("location", ""))
        except ValueError:
            new = None
        if new is None or new.origin != target.origin:
            shown_target = f"{new.origin}{new.path}" if new is not None else "nowhere"
            raise document_error(
                f"{self.location} redirects to {shown_target}", "if you trust that address, make it `openapi.url`"
            )
        return new


async def _read_document(response: HttpResponse, location: str) -> CachedDocument:
    if response.status != 200:
        body = b""
        try:
            async with asyncio.timeout(2.0):
                body = await response.chunk()
        except (HttpError, TimeoutError):
            pass
        reason = f"{location} responds {responses.status_phrase(response.status)}{body_excerpt(body)}"
        raise document_error(
            reason, "fix `openapi.url`, or `openapi.headers` if it requires a token", status=response.status
        )
    try:
        data = await response.read(MAX_DOCUMENT_BYTES)
    except HttpError as exc:
        if exc.code != "E-HTTP-LIMIT":
            raise
        raise document_too_large(location) from None
    return CachedDocument(data, response.headers.get("etag", ""), response.headers.get("last-modified", ""))


def _fetch_headers(server: Server, openapi: OpenApi, target: HttpTarget) -> dict[str, str]:
    """Return the headers for the request that fetches the OpenAPI document.

    The entry's headers are added only if its `url` has the same origin as the document.
    """
    headers = {"Accept": "application/json, application/yaml;q=0.9, */*;q=0.5", "Accept-Encoding": "identity"}
    if server.url is not None and HttpTarget.parse(server.url).origin == target.origin:
        headers.update(server.headers)
    return {**headers, **openapi.headers}


def _is_transient(error: TransportError) -> bool:
    """Return True if a failed fetch may succeed later, or says nothing about the OpenAPI document."""
    return error.status is None or error.status >= 500 or error.status in _TRANSIENT_STATUSES


def document_error(reason: str, hint: str, *, status: int | None = None) -> TransportError:
    return TransportError(reason, Certainty.NOT_SENT, code=DOCUMENT_ERROR_CODE, hint=hint, status=status)


def document_too_large(location: str) -> TransportError:
    return document_error(
        f"{location} is larger than {MAX_DOCUMENT_BYTES >> 20} MiB", "reduce the document to what is needed"
    )


# -- disk cache -------------------------------------------------------------------------------------------------------

MAX_CACHED_DOCUMENTS: Final = 64  # documents; the least recently used are deleted first
_MAX_VALIDATOR_CHARS: Final = 1000  # characters of an ETag or Last-Modified value


class CachedDocument(NamedTuple):
    """Cached OpenAPI document, with the ETag and Last-Modified values of its version."""

    data: bytes
    etag: str = ""
    modified: str = ""

    @property
    def conditions(self) -> dict[str, str]:
        """Return If-None-Match or If-Modified-Since for this version, or no header if it has no validator."""
        if _is_header_safe(self.etag):
            return {"If-None-Match": self.etag}
        return {"If-Modified-Since": self.modified} if _is_header_safe(self.modified) else {}


class DocumentCache:
    """The disk cache entry for one OpenAPI document: each URL has a private file.

    Errors are ignored, because the cache is optional.
    """

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._file = folder / f"{sha256(url.encode()).hexdigest()}.doc"

    @classmethod
    def for_url(cls, environ: Mapping[str, str], url: str) -> DocumentCache | None:
        """Return the disk cache entry for `url`, or None without a cache folder."""
        cache = cache_folder(environ)
        return cls(cache / "openapi", url) if cache else None

    def load(self) -> CachedDocument | None:
        try:
            with self._file.open("rb") as file:
                head, data = file.readline(4 * _MAX_VALIDATOR_CHARS), file.read(MAX_DOCUMENT_BYTES + 1)
            etag, modified, digest = msgspec.json.decode(head, type=tuple[str, str, str])
            if sha256(data).hexdigest() != digest:
                return None  # incomplete, or not written by us
            os.utime(self._file)
            return CachedDocument(data, etag, modified)
        except (OSError, ValueError):
            return None

    def save(self, document: CachedDocument) -> None:
        """Save the OpenAPI document. If there are too many, delete the least recently used ones."""
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            head = msgspec.json.encode(
                [
                    document.etag[:_MAX_VALIDATOR_CHARS],
                    document.modified[:_MAX_VALIDATOR_CHARS],
                    sha256(document.data).hexdigest(),
                ]
            )
            new = self._file.with_suffix(f".{os.getpid()}")
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | O_PRIVATE, 0o600), "wb") as file:
                file.write(head + b"\n" + document.data)
            new.replace(self._file)
            self._evict()

    def _evict(self) -> None:
        files = sorted(self._folder.glob("*.doc"), key=lambda file: file.stat().st_mtime, reverse=True)
        for file in files[MAX_CACHED_DOCUMENTS:]:
            file.unlink(missing_ok=True)


def _is_header_safe(value: str) -> bool:
    return bool(value) and value.isascii() and value.isprintable() and len(value) <= _MAX_VALIDATOR_CHARS


# -- parser in a subprocess -------------------------------------------------------------------------------------------

MIN_SUBPROCESS_BYTES: Final = 200_000  # bytes; a smaller document is parsed faster than a process is started
MAX_OUTPUT_BYTES: Final = 256 << 20  # bytes of the subprocess's output
GIL_YIELD_S: Final = 0.0002  # seconds: enough for the event loop to take the GIL
_OPERATIONS_PER_YIELD: Final = 10  # operations between two pauses


class SubprocessUnavailable(Exception):
    """Raised when the parser subprocess cannot be started, or ends without a complete result."""


class _ParserOutput(msgspec.Struct):
    """First frame of the parser subprocess's output: an error, or the document.

    The operations of the document follow in separate frames.
    """

    reason: str = ""
    fix: str = ""
    document: ApiDocument | None = None
    count: int = 0  # operations that follow


async def parse_in_subprocess(
    data: bytes,
    source: str,
    choice: OperationSelection,
    preset_parameters: frozenset[str],
    spawner: Spawner,
    environ: Mapping[str, str],
) -> ApiDocument:
    """Parse an OpenAPI document in a subprocess, to keep the event loop free.

    The output is decoded in small steps. Raises `InvalidDocument` if the document is invalid or takes too much time or
    memory, and `SubprocessUnavailable` if the subprocess cannot run.
    """
    command = [sys.executable, "-I", subprocess_main.__file__, str(Path(toolway.__file__).parent.parent)]
    try:
        process = await spawner.start(command, build_environment(environ, "none", {}), None)
    except SpawnError as exc:
        raise SubprocessUnavailable(exc.code) from None
    head = msgspec.json.encode([source, choice, sorted(preset_parameters)]) + b"\n"
    try:
        document = await _run_parser(process, head + data)
        code = await process.exited
    finally:
        process.kill_tree()
    if code < 0:  # killed by a system limit: it would fail in this process too
        raise InvalidDocument(f"{source} takes too much time or memory to parse", hint="keep only the parts you need")
    if document is None or code != 0:
        raise SubprocessUnavailable(f"exit code {code}")
    return document


async def _run_parser(process: Process, request: bytes) -> ApiDocument | None:
    """Return the OpenAPI document from the parser subprocess, or None if its output is incomplete.

    Sending and receiving run at the same time, so neither side blocks. Stderr is ignored. Raises `InvalidDocument` if
    the subprocess reports that the document is invalid.
    """
    process.stderr.start(lambda _: None)
    writing = asyncio.ensure_future(write_all(process.stdin, request))
    try:
        output = await read_all(process.stdout, MAX_OUTPUT_BYTES)
    finally:
        writing.cancel()  # ends at once, and closes the pipe: a parser that has answered reads no more
        await asyncio.wait({writing})
        process.stdout.close()
        process.stderr.close()
    return await run_in_daemon_thread(_decode_output, output)


def _decode_output(output: bytes) -> ApiDocument | None:
    frames = _split_frames(output)
    try:
        first = msgspec.json.decode(next(frames, b""), type=_ParserOutput)
        decode = msgspec.json.Decoder(Operation).decode
        operations = []
        for number, frame in enumerate(frames):
            operations.append(decode(frame))
            if number % _OPERATIONS_PER_YIELD == 0:
                time.sleep(GIL_YIELD_S)
    except msgspec.DecodeError:
        return None
    if first.reason:
        raise InvalidDocument(first.reason, hint=first.fix)
    if first.document is None or first.count != len(operations):
        return None
    return replace(first.document, operations=tuple(operations))


def _split_frames(output: bytes) -> Iterator[bytes]:
    """Yield the length-prefixed frames of the parser subprocess's output.

    A truncated frame yields b"", which makes the whole output invalid.
    """
    at = 0
    while at < len(output):
        size = int.from_bytes(output[at : at + 4], "big")
        yield output[at + 4 : at + 4 + size] if at + 4 + size <= len(output) else b""
        at += 4 + size
