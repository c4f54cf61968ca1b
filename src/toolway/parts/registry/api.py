"""Requests to one MCP registry (API v0.1), and its last answers if it cannot be reached.

Only the registry's own address is asked: redirects are not followed. If it is unreachable, busy (429) or broken (5xx),
its last answer is used. A 404 is an answer.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from types import TracebackType
from typing import Final, NamedTuple
from urllib.parse import quote, urlencode

from toolway.errors import ToolwayError
from toolway.http.client import HttpClient, HttpError, HttpTarget, encode_headers
from toolway.network import NetworkPolicy
from toolway.parts.registry.cache import FRESH_S, AnswerCache
from toolway.parts.registry.publisher import is_version
from toolway.parts.registry.records import Page, ServerRecord, invalid_answer, read_page, read_record

REGISTRY_CODE: Final = "E-REGISTRY"
MAX_ANSWER_BYTES: Final = 4 * 1000 * 1000
REQUEST_TIMEOUT_S: Final = 20.0
PAGE_SIZE: Final = 100
MAX_PAGES: Final = 50
_HEADERS: Final = encode_headers({"Accept": "application/json", "User-Agent": "toolway"})
_FINAL_CODES: Final = ("E-HTTP-ADDRESS", "E-HTTP-LIMIT", "E-HTTP-TLS", "E-HTTP-PROTOCOL")  # not a lack of a network


class SearchResult(NamedTuple):
    """Servers that a search found, whether there are more, and the age of the oldest answer in seconds."""

    records: list[ServerRecord]
    has_more: bool
    age: float


class Lookup(NamedTuple):
    """A record, and the age of the answer in seconds: 0 if the registry has just sent it."""

    record: ServerRecord
    age: float


class _Unavailable(Exception):
    """The registry did not answer; its last answer may be used."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.hint = hint or "try again later; check the network and toolway.registries"


class RegistryClient:
    """One registry. Use it as an async context manager, in one event loop."""

    def __init__(self, url: str, network_policy: NetworkPolicy, cache: AnswerCache) -> None:
        self.url = url
        self._client = HttpClient(network_policy=network_policy.allowing(url))
        self._cache = cache

    async def __aenter__(self) -> RegistryClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    async def search(self, text: str, limit: int, *, refresh: bool = False) -> SearchResult:
        """Return the newest versions of at most `limit` servers whose names contain `text`.

        Answers of the last day are used without a request, unless `refresh`. Raises `ToolwayError`.
        """
        found: dict[str, ServerRecord] = {}
        cursor, seen, oldest = "", {""}, 0.0
        for _ in range(MAX_PAGES):
            page, age = await self._search_page(text, cursor, refresh=refresh)
            oldest = max(oldest, age)
            for record in page.records:
                found.setdefault(record.name, record)
            cursor = page.cursor
            if not cursor or len(found) >= limit:
                break
            if cursor in seen:
                raise invalid_answer(self.url, "its list of servers never ends")
            seen.add(cursor)
        return SearchResult(list(found.values())[:limit], bool(cursor) or len(found) > limit, oldest)

    async def _search_page(self, text: str, cursor: str, *, refresh: bool) -> tuple[Page, float]:
        query = {"search": text, "version": "latest", "limit": str(PAGE_SIZE), **({"cursor": cursor} if cursor else {})}
        url = f"{self.url}/v0.1/servers?{urlencode(query)}"
        cached = self._cache.load(url)
        if cached is not None and cached.age < FRESH_S and not refresh:
            return read_page(cached.body, self.url), cached.age
        try:
            body = await self._get(url)
        except _Unavailable as exc:
            if cached is None:
                raise self._unreachable(exc) from None
            return read_page(cached.body, self.url), cached.age
        page = read_page(body or b'{"servers":[]}', self.url)
        if body is not None:
            self._cache.save(url, body)
        return page, 0.0

    async def fetch(self, name: str, version: str) -> Lookup | None:
        """Return one version of a server, or its `latest`; None if the registry does not have it.

        The registry is always asked. Raises `ToolwayError` if it does not answer, and has never sent this record.
        """
        url = f"{self._server_url(name)}/versions/{quote(version, safe='')}"
        try:
            body = await self._get(url)
        except _Unavailable as exc:
            cached = self._find_cached(url, name, version)
            if cached is None:
                raise self._unreachable(exc) from None
            return cached
        if body is None:
            self._cache.remove(url)
            return None
        record = read_record(body, self.url, name, version)
        self._cache.save(url, body)
        return Lookup(record, 0.0)

    async def versions(self, name: str) -> list[str]:
        """Return the versions of a server; none if the registry does not have it. Raises `ToolwayError`."""
        try:
            body = await self._get(f"{self._server_url(name)}/versions")
        except _Unavailable as exc:
            raise self._unreachable(exc) from None
        if body is None:
            return []
        page = read_page(body, self.url)
        found = [each.version for each in page.records if each.name == name]
        if page.listed and not found:  # it has the name, so no other registry may give it to someone else
            raise invalid_answer(self.url, f"it lists versions of {name} that cannot be used")
        return found

    def cached_names(self) -> Iterator[str]:
        """Yield the names of servers in stored answers to searches."""
        for record, _ in self._cached_records():
            yield record.name

    def _find_cached(self, url: str, name: str, version: str) -> Lookup | None:
        """Return a stored record: the answer to the same request, or from a search, which lists newest versions."""
        if (cached := self._cache.load(url)) is not None:
            return Lookup(read_record(cached.body, self.url, name, version), cached.age)
        for record, age in self._cached_records():
            if record.name == name and version in ("latest", record.version):
                return Lookup(record, age)
        return None

    def _cached_records(self) -> Iterator[tuple[ServerRecord, float]]:
        for answer in self._cache.iter_answers(f"{self.url}/v0.1/servers?"):
            for record in read_page(answer.body, self.url).records:
                yield record, answer.age

    def _server_url(self, name: str) -> str:
        return f"{self.url}/v0.1/servers/{quote(name, safe='')}"

    async def _get(self, url: str) -> bytes | None:
        """Return the body of an answer; None if there is nothing at this URL. Raises `_Unavailable`."""
        try:
            target = HttpTarget.parse(url)
            async with (
                asyncio.timeout(REQUEST_TIMEOUT_S),
                self._client.send("GET", target, [_HEADERS]) as response,
            ):
                if response.status == 200:
                    return await response.read(MAX_ANSWER_BYTES)
                status, retry_after = response.status, response.headers.get("retry-after", "")
        except TimeoutError:
            raise _Unavailable(f"no answer within {REQUEST_TIMEOUT_S:g} s") from None
        except HttpError as exc:
            if exc.code == "E-HTTP-LIMIT":
                raise invalid_answer(self.url, f"it is larger than {MAX_ANSWER_BYTES:,} bytes") from None
            if exc.code in _FINAL_CODES:
                raise ToolwayError(
                    f"{self.url} cannot be asked", detail=exc.reason, hint=exc.hint, code=exc.code
                ) from None
            raise _Unavailable(exc.reason, exc.hint) from None
        if status == 404:
            return None
        if status == 429:
            again = f"try again in {int(retry_after)} s" if retry_after.isdecimal() else "try again in a minute"
            raise _Unavailable("it got too many requests (429)", again)
        if status >= 500:
            raise _Unavailable(f"it answered with status {status}")
        raise ToolwayError(
            f"{self.url} rejected the request",
            detail=f"it answered with status {status}",
            hint="check its address in toolway.registries",
            code=REGISTRY_CODE,
        )

    def _unreachable(self, reason: _Unavailable) -> ToolwayError:
        return ToolwayError(
            f"{self.url} cannot be asked, and its answer is not stored",
            detail=str(reason),
            hint=reason.hint,
            code=REGISTRY_CODE,
        )


def describe_age(seconds: float) -> str:
    """Return the age of a stored answer for users."""
    hours = math.floor(seconds / 3600)
    return f"{hours // 24} d old" if hours >= 48 else f"{hours} h old" if hours else "less than 1 h old"


def require_version(text: str) -> str:
    """Return a version that a user typed. Raises `ToolwayError` if it cannot be one."""
    if not is_version(text):
        raise ToolwayError("invalid version", detail=ascii(text[:80]), hint="use NAME@1.2.3", code="E-REGISTRY-NONE")
    return text
