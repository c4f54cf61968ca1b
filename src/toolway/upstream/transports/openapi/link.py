"""An HTTP API behind an OpenAPI document, as a server of the modern era whose tools are the API's operations.

Opening it reads the document. Every call is a request of its own on our lean client, so its failure is its own; what
the API answers is judged by `verdict.py` and becomes a result in `results.py`. The document is looked at again now and
then, and where it has changed the list of tools has changed.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Mapping
from typing import Any, Final

from mcp_types import SERVER_INFO_META_KEY
from mcp_types.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND

from toolway.config.spec import Server
from toolway.model import Attempt, Authorizer, Certainty, Era, Json
from toolway.openapi.encoding import Encoded, encode
from toolway.openapi.problems import BadArguments
from toolway.protocol import eras, wire
from toolway.upstream.link import Fault, Inbound, LinkFacts, Loss, Request, RpcError
from toolway.upstream.process.spawn import Spawner
from toolway.upstream.transports.decoding import decode_heavy
from toolway.upstream.transports.http import base
from toolway.upstream.transports.http.authorized import NONE, authorized
from toolway.upstream.transports.http.link import start_of
from toolway.upstream.transports.http.verdict import excerpt, from_http_fault
from toolway.upstream.transports.http1.client import (
    Client,
    HeaderBlock,
    HttpFault,
    HttpLimits,
    Response,
    Target,
    header_block,
)
from toolway.upstream.transports.openapi import results, verdict
from toolway.upstream.transports.openapi.api import Api, Way, read_api
from toolway.upstream.transports.openapi.documents import Source, source_of
from toolway.upstream.transports.openapi.paging import next_arguments

FRESH: Final = 2.0  # seconds a kept connection may have been idle where a loss must not be ambiguous
MAX_REDIRECTS: Final = 3
REFRESH_LIMIT: Final = 60.0  # for one look at the document
PROBLEM_TIME: Final = 5.0  # for the body of a no, which can only explain it
_TARGET: Final = re.compile(r"/[!-\"$-~]*")  # what may stand in a request line, and no fragment
_LIST_CHANGED: Final = "notifications/tools/list_changed"


class OpenApiLink:
    def __init__(
        self,
        server: Server,
        spawner: Spawner,
        environ: Mapping[str, str],
        authorizer: Authorizer | None = None,
        limits: HttpLimits | None = None,
    ) -> None:
        assert server.openapi is not None
        self._server = server
        self._openapi = server.openapi
        self._spawner = spawner
        self._environ = environ
        # Whoever wants no OAuth says in the document what it wants instead.
        self._authorizer = authorizer if server.auth is not None else None
        self._client = Client(limits or base.limits(server), server.reach)
        self._refreshing: asyncio.Task[None] | None = None
        self._api: Api | None = None
        self._source: Source | None = None
        self._stale = ""  # why the document could not be looked at again

    # -- the life of the link -----------------------------------------------------------------------------------------

    async def open(self, inbound: Inbound) -> None:
        self._inbound = inbound
        self._source = source_of(self._server, self._client, self._environ)
        self._api = await self._read(await self._source.first(), self._source)
        if self._source.pause:
            self._refreshing = asyncio.create_task(self._keep_fresh(self._source))

    async def _read(self, data: bytes, source: Source) -> Api:
        return await read_api(data, source.where, self._server, self._spawner, self._environ)

    async def _keep_fresh(self, source: Source) -> None:
        while True:
            await asyncio.sleep(source.pause * random.uniform(0.9, 1.1))
            try:
                async with asyncio.timeout(REFRESH_LIMIT):
                    data = await source.again()
                    if data is not None:
                        self._api = await self._read(data, source)
                        self._inbound.on_notification(_LIST_CHANGED, {})
                self._stale = ""
            except (Fault, TimeoutError) as exc:
                why = exc.reason if isinstance(exc, Fault) else f"no answer within {REFRESH_LIMIT:g} s"
                self._stale = f"the document is the one from before, because {why}"

    def adopt(self, era: Era, version: str) -> None:
        """Nothing to do: there is one era, and it is ours."""

    def forget_session(self) -> None:
        """Nothing to do: there is no session."""

    async def wait_lost(self) -> Loss:
        never: asyncio.Future[Loss] = asyncio.get_running_loop().create_future()
        return await never

    def facts(self) -> LinkFacts:
        notes = [self._source.note if self._source is not None else "", self._stale]
        notes += self._api.notes if self._api is not None else ()
        return LinkFacts(notes=tuple(note for note in notes if note))

    async def close(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
            self._refreshing = None
        self._client.close()
        await asyncio.sleep(0)  # the loop closes the sockets in its next turn

    # -- what a server of MCP does ------------------------------------------------------------------------------------

    async def request(self, request: Request) -> Json:
        if request.method == "tools/call":
            return await self._call(request)
        assert self._api is not None
        if request.method == "server/discover":
            return await self._discover(self._api)
        if request.method == "tools/list":
            return {"resultType": "complete", "tools": self._api.tools}
        if request.method == "subscriptions/listen":  # changes are told without it; it only must not end
            await asyncio.get_running_loop().create_future()
        raise RpcError(METHOD_NOT_FOUND, f"an API has no {request.method}")

    async def notify(self, method: str, params: Json) -> None:
        """Nobody is told: what is cancelled loses its connection."""

    async def _discover(self, api: Api) -> Json:
        """A sign of life: the API takes a connection. What it does with a request is known by those that are made."""
        try:
            await self._client.connect(api.origin)
        except HttpFault as fault:
            raise from_http_fault(fault) from None
        return {
            "resultType": "complete",
            "supportedVersions": [eras.PREFERRED],
            "capabilities": {"tools": {"listChanged": True}},
            "instructions": api.instructions,
            "_meta": {SERVER_INFO_META_KEY: {"name": api.title or "openapi", "version": api.version or "0"}},
        }

    # -- calls --------------------------------------------------------------------------------------------------------

    async def _call(self, request: Request) -> Json:
        assert self._api is not None
        name, arguments = request.params.get("name"), request.params.get("arguments")
        way = self._api.ways.get(name) if isinstance(name, str) else None
        if way is None:
            raise RpcError(INVALID_PARAMS, f"Unknown tool: {name}")
        arguments = arguments if isinstance(arguments, dict) else {}
        attempt = request.attempt
        attempt.phase = "send"
        attempt.encoded = None
        try:
            encoded = encode(way.operation, arguments, way.prefix)
            target, headers = self._request(way, encoded, request.params)
        except BadArguments as exc:
            raise RpcError(INVALID_PARAMS, str(exc)) from None
        except (ValueError, TypeError, OverflowError, RecursionError) as exc:
            raise Fault(f"the request cannot be written: {exc}", Certainty.C0, code="E-REQUEST") from None
        body = encoded.body or b""
        if self._authorizer is None:
            return await self._send(way, target, (way.head, headers), body, arguments, attempt)
        return await authorized(
            self._authorizer,
            f"tools/call {name}",
            lambda token: self._send(way, target, (way.head, headers, token), body, arguments, attempt),
            attempt,
        )

    def _request(self, way: Way, encoded: Encoded, params: Json) -> tuple[Target, HeaderBlock]:
        """Where it goes, and its own header lines. Raises `ValueError`."""
        path = encoded.target
        if way.query:
            path = f"{path}{'&' if '?' in path else '?'}{way.query}"
        if not _TARGET.fullmatch(path) or not path.startswith(way.prefix):
            raise ValueError("its target is none")
        headers = {name: value for name, value in encoded.headers if name.lower() not in way.fixed}
        if way.cookie:
            given = headers.pop("Cookie", "")
            headers["Cookie"] = f"{given}; {way.cookie}" if given else way.cookie
        if encoded.body is not None and encoded.content_type:
            headers["Content-Type"] = encoded.content_type
        key = self._key(params)
        if key and not any(name.lower() == key[0].lower() for name in headers):
            headers[key[0]] = key[1]
        return Target(way.origin, path), header_block(headers) if headers else NONE

    def _key(self, params: Json) -> tuple[str, str] | None:
        """The idempotency key of the call, as the header that the API knows."""
        name = self._openapi.key_header
        meta = params.get("_meta") if name is not None else None
        key = meta.get(self._server.key_meta) if isinstance(meta, dict) else None
        return (name, key) if name is not None and isinstance(key, str) else None

    async def _send(
        self,
        way: Way,
        target: Target,
        headers: tuple[HeaderBlock, ...],
        body: bytes,
        arguments: Json,
        attempt: Attempt,
    ) -> Json:
        """What the API answers, behind redirects within its origin. Raises `Fault`."""
        method = way.operation.method
        try:
            for _ in range(MAX_REDIRECTS + 1):
                response = self._client.send(method, target, headers, body, max_idle=FRESH, on_sent=attempt.sent)
                response.on_dial = attempt.connecting
                await response.begin()
                try:
                    status = response.status
                    moved = None
                    if 300 <= status < 400 and status != 304:
                        moved = verdict.redirect(way.operation, target, status, response.headers)
                    if moved is None:
                        return await self._answer(way, target, response, arguments)
                    target = moved
                    response.finish_soon()
                finally:
                    response.leave()
        except HttpFault as fault:
            raise from_http_fault(fault) from None
        raise verdict.redirect_loop()

    async def _answer(self, way: Way, target: Target, response: Response, arguments: Json) -> Json:
        operation, status, headers = way.operation, response.status, response.headers
        if status >= 400:
            body = await start_of(response, PROBLEM_TIME)
            if not verdict.is_answer(status):
                raise verdict.failure(status, headers, body, way.missing)
            return results.of_other(operation, status, headers, body)
        body = b""
        if operation.method != "HEAD":
            limit = self._server.limits.frame
            body = response.whole(limit) or await response.read(limit)
        if not body or not results.is_json(headers):
            if body and not results.is_expected(operation, headers):
                kind = wire.clean_text(results.media_type(headers) or "no content type", 80)
                raise verdict.unusable(f"it is {kind} where JSON is promised{excerpt(body)}")
            return results.of_other(operation, status, headers, body)
        value = await _decoded(body)
        result = results.of_json(operation, status, headers, body, value)
        more = next_arguments(operation, arguments, f"{target.origin}{target.path}", headers, value)
        return results.with_next(result, more) if more is not None else result


async def _decoded(body: bytes) -> Any:
    """Raises `Fault`."""
    try:
        return await decode_heavy(body) if wire.is_heavy(body) else wire.decode(body)
    except (ValueError, RecursionError) as exc:
        raise verdict.unusable(str(exc)) from None
