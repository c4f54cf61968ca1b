"""A transport that presents an HTTP API as a modern MCP server: each operation is a tool.

`open` loads the document. Every call is a separate HTTP request, so if it fails, other calls are not affected.
`responses.py` classifies the API's response and converts it to a tool result. The document is checked periodically. If
it has changed, the list of tools has changed too.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urljoin, urlsplit

from toolway.config.schema import Server
from toolway.http.client import (
    ClientLimits,
    HeaderBlock,
    HttpClient,
    HttpError,
    HttpResponse,
    HttpTarget,
    encode_headers,
)
from toolway.parts.openapi import responses
from toolway.parts.openapi.bindings import ApiBinding, OperationBinding, bind_document
from toolway.parts.openapi.document.models import Operation, UnencodableArguments
from toolway.parts.openapi.document.request_encoder import EncodedRequest, encode_operation
from toolway.parts.openapi.document_source import DocumentSource, create_document_source
from toolway.parts.openapi.settings import settings_of
from toolway.protocol import jsonrpc, versions
from toolway.protocol.constants import INVALID_PARAMS, METHOD_NOT_FOUND, SERVER_INFO_META_KEY
from toolway.types import Authorizer, CallState, Certainty, Era, Json
from toolway.upstream.process.spawner import Spawner
from toolway.upstream.transport import (
    Disconnect,
    InboundHandler,
    JSONRPCError,
    Request,
    TransportError,
    TransportInfo,
)
from toolway.upstream.transports import streamable_http
from toolway.upstream.transports.http_responses import (
    NO_AUTH_HEADER,
    body_excerpt,
    describe_media_type,
    error_from_http,
    send_with_auth,
    watch_send,
)
from toolway.upstream.transports.pending_requests import decode_large
from toolway.upstream.transports.streamable_http import read_error_body

MAX_CONNECTION_IDLE_S: Final = 2.0  # idle time of a pooled connection, so its loss is not ambiguous
MAX_REDIRECTS: Final = 3
REFRESH_TIMEOUT_S: Final = 60.0  # seconds for one check of the document
ERROR_BODY_TIMEOUT_S: Final = 5.0  # seconds to read the body of an error response, which only explains it
_REQUEST_PATH: Final = re.compile(r"/[!-\"$-~]*")  # characters valid in a request line, without a fragment
_LIST_CHANGED: Final = "notifications/tools/list_changed"


class OpenApiTransport:
    """A transport that translates MCP tool calls to requests to an HTTP API."""

    def __init__(
        self,
        server: Server,
        spawner: Spawner,
        environ: Mapping[str, str],
        authorizer: Authorizer | None = None,
        limits: ClientLimits | None = None,
    ) -> None:
        self._server = server
        self._openapi = settings_of(server)
        self._spawner = spawner
        self._environ = environ
        # Without an `auth` setting, the security schemes of the document apply instead of OAuth.
        self._authorizer = authorizer if server.auth is not None else None
        self._client = HttpClient(
            limits or streamable_http.client_limits_for(server), server.effective_network_policy, server.tls
        )
        self._refresh_task: asyncio.Task[None] | None = None
        self._api: ApiBinding | None = None
        self._source: DocumentSource | None = None
        self._refresh_problem = ""  # why the document could not be checked
        self._requests_sent = 0
        self._responses_received = 0

    # -- open and close -----------------------------------------------------------------------------------------------

    async def open(self, inbound: InboundHandler) -> None:
        self._inbound = inbound
        self._source = create_document_source(self._server, self._client, self._environ)
        self._api = await self._parse(await self._source.load(), self._source)
        if self._source.check_interval:
            self._refresh_task = asyncio.create_task(self._refresh_periodically(self._source))

    async def _parse(self, data: bytes, source: DocumentSource) -> ApiBinding:
        return await bind_document(data, source.location, self._server, self._spawner, self._environ)

    async def _refresh_periodically(self, source: DocumentSource) -> None:
        while True:
            await asyncio.sleep(source.check_interval * random.uniform(0.9, 1.1))
            try:
                async with asyncio.timeout(REFRESH_TIMEOUT_S):
                    data = await source.reload()
                    if data is not None:
                        self._api = await self._parse(data, source)
                        self._inbound.on_notification(_LIST_CHANGED, {})
                self._refresh_problem = ""
            except (TransportError, TimeoutError) as exc:
                reason = (
                    exc.reason if isinstance(exc, TransportError) else f"no response within {REFRESH_TIMEOUT_S:g} s"
                )
                self._refresh_problem = f"the document may be outdated, because {reason}"

    def set_protocol(self, era: Era, version: str) -> None:
        """Do nothing: this transport always speaks the modern protocol era."""

    def reset_session(self) -> None:
        """Do nothing: an HTTP API has no MCP session."""

    async def wait_closed(self) -> Disconnect:
        never: asyncio.Future[Disconnect] = asyncio.get_running_loop().create_future()
        return await never

    def info(self) -> TransportInfo:
        notes = [self._source.note if self._source is not None else "", self._refresh_problem]
        notes += self._api.notes if self._api is not None else ()
        return TransportInfo(
            notes=tuple(note for note in notes if note),
            messages_sent=self._requests_sent,
            messages_received=self._responses_received,
        )

    async def close(self) -> None:
        if self._refresh_task is not None:
            self._refresh_task.cancel()
            await asyncio.gather(self._refresh_task, return_exceptions=True)
            self._refresh_task = None
        self._client.close()
        await asyncio.sleep(0)  # the event loop closes the sockets in its next turn

    # -- MCP methods --------------------------------------------------------------------------------------------------

    async def request(self, request: Request) -> Json:
        if request.method == "tools/call":
            return await self._call(request)
        assert self._api is not None
        if request.method == "server/discover":
            return await self._discover(self._api)
        if request.method == "tools/list":
            return {"resultType": "complete", "tools": self._api.tools}
        if request.method == "subscriptions/listen":  # changes are announced without it; it only must not end
            await asyncio.get_running_loop().create_future()
        raise JSONRPCError(METHOD_NOT_FOUND, f"an API does not support {request.method}")

    async def notify(self, method: str, params: Json) -> None:
        """Do nothing: an HTTP API does not get notifications. A call is cancelled by closing its connection."""

    async def _discover(self, api: ApiBinding) -> Json:
        """Connect to the API as a health check, and return the `server/discover` result.

        Only the connection is checked; no request is sent. Raises `TransportError` if it fails.
        """
        try:
            await self._client.connect(api.origin)
        except HttpError as error:
            raise error_from_http(error) from None
        return {
            "resultType": "complete",
            "supportedVersions": [versions.PREFERRED_VERSION],
            "capabilities": {"tools": {"listChanged": True}},
            "instructions": api.instructions,
            "_meta": {SERVER_INFO_META_KEY: {"name": api.title or "openapi", "version": api.version or "0"}},
        }

    # -- calls --------------------------------------------------------------------------------------------------------

    async def _call(self, request: Request) -> Json:
        assert self._api is not None
        name, arguments = request.params.get("name"), request.params.get("arguments")
        binding = self._api.bindings.get(name) if isinstance(name, str) else None
        if binding is None:
            raise JSONRPCError(INVALID_PARAMS, f"Unknown tool: {name}")
        arguments = arguments if isinstance(arguments, dict) else {}
        call_state = request.call_state
        call_state.phase = "send"
        call_state.raw_bytes = None
        try:
            encoded = encode_operation(binding.operation, arguments, binding.prefix)
            target, headers = self._build_request(binding, encoded, request.params)
        except UnencodableArguments as exc:
            raise TransportError(str(exc), Certainty.NOT_SENT, code="E-ARGUMENTS", violations=exc.violations) from None
        except (ValueError, TypeError, OverflowError, RecursionError) as exc:
            raise TransportError(
                f"the request cannot be encoded: {exc}", Certainty.NOT_SENT, code="E-REQUEST"
            ) from None
        body = encoded.body or b""
        if self._authorizer is None:
            return await self._send(binding, target, (binding.head, headers), body, arguments, call_state)
        return await send_with_auth(
            self._authorizer,
            f"tools/call {name}",
            lambda token: self._send(binding, target, (binding.head, headers, token), body, arguments, call_state),
            call_state,
        )

    def _build_request(
        self, binding: OperationBinding, encoded: EncodedRequest, params: Json
    ) -> tuple[HttpTarget, HeaderBlock]:
        """Return the target and headers of the HTTP request for a tool call. Raises `ValueError` if one is invalid.

        Raises `ValueError` if the path or a header is invalid.
        """
        path = encoded.target
        if binding.query:
            path = f"{path}{'&' if '?' in path else '?'}{binding.query}"
        if not _REQUEST_PATH.fullmatch(path) or not path.startswith(binding.prefix):
            raise ValueError("its path is invalid")
        headers = {name: value for name, value in encoded.headers if name.lower() not in binding.fixed_headers}
        if binding.cookie:
            argument_cookie = headers.pop("Cookie", "")
            headers["Cookie"] = f"{argument_cookie}; {binding.cookie}" if argument_cookie else binding.cookie
        if encoded.body is not None and encoded.content_type:
            headers["Content-Type"] = encoded.content_type
        idempotency_header = self._idempotency_header(params)
        if idempotency_header and not any(name.lower() == idempotency_header[0].lower() for name in headers):
            headers[idempotency_header[0]] = idempotency_header[1]
        return HttpTarget(binding.origin, path), encode_headers(headers) if headers else NO_AUTH_HEADER

    def _idempotency_header(self, params: Json) -> tuple[str, str] | None:
        """Return the call's idempotency key as (header name, value), or None if it has none."""
        name = self._openapi.idempotency_header
        meta = params.get("_meta") if name is not None else None
        key = meta.get(self._server.idempotency_meta_key) if isinstance(meta, dict) else None
        return (name, key) if name is not None and isinstance(key, str) else None

    async def _send(
        self,
        binding: OperationBinding,
        target: HttpTarget,
        headers: tuple[HeaderBlock, ...],
        body: bytes,
        arguments: Json,
        call_state: CallState,
    ) -> Json:
        """Send a call's HTTP request, follow redirects, and return the tool result.

        Only redirects within the origin are followed. Raises `TransportError` if the request fails or is not answered.
        """
        method = binding.operation.method
        self._requests_sent += 1
        try:
            for _ in range(MAX_REDIRECTS + 1):
                response = self._client.send(
                    method, target, headers, body, max_idle=MAX_CONNECTION_IDLE_S, on_sent=call_state.mark_sent
                )
                watch_send(response, call_state)
                await response.send_and_wait()
                try:
                    status = response.status
                    redirected = None
                    if 300 <= status < 400 and status != 304:
                        redirected = responses.follow_redirect(binding.operation, target, status, response.headers)
                    if redirected is None:
                        return await self._to_result(binding, target, response, arguments)
                    target = redirected
                    response.finish_soon()
                finally:
                    response.abandon()
        except HttpError as error:
            raise error_from_http(error) from None
        raise responses.error_for_redirect_loop()

    async def _to_result(
        self, binding: OperationBinding, target: HttpTarget, response: HttpResponse, arguments: Json
    ) -> Json:
        """Convert the API's response to a tool result.

        Raises `TransportError` if the status does not answer the request, or if the body breaks the document's promise.
        """
        self._responses_received += 1
        operation, status, headers = binding.operation, response.status, response.headers
        if status >= 400:
            body = await read_error_body(response, ERROR_BODY_TIMEOUT_S)
            if not responses.is_final_status(status):
                raise responses.error_for_status(status, headers, body, binding.missing_credentials)
            return responses.result_from_bytes(operation, status, headers, body)
        body = b""
        if operation.method != "HEAD":
            limit = self._server.limits.max_message_bytes
            body = response.take_complete(limit) or await response.read(limit)
        if not body or not responses.is_json(headers):
            if body and not responses.is_declared_type(operation, headers):
                kind = describe_media_type(headers)
                raise responses.error_for_bad_response(
                    f"it is {kind}, but the document promises JSON{body_excerpt(body)}"
                )
            return responses.result_from_bytes(operation, status, headers, body)
        value = await _decode_body(body)
        result = responses.result_from_json(operation, status, headers, body, value)
        next_page = next_page_arguments(operation, arguments, f"{target.origin}{target.path}", headers, value)
        return responses.with_next_page(result, next_page) if next_page is not None else result


async def _decode_body(body: bytes) -> Any:
    """Decode a JSON body, in a thread if it is large. Raises `TransportError` if it is invalid."""
    try:
        return await decode_large(body) if jsonrpc.is_large(body) else jsonrpc.decode_json(body)
    except (ValueError, RecursionError) as exc:
        raise responses.error_for_bad_response(str(exc)) from None


# -- next page --------------------------------------------------------------------------------------------------------

_NEXT_LINK: Final = re.compile(r"<([^<>]{1,4000})>\s*(?:;[^,<>]{0,500})?;\s*rel=\"?(?:[\w ]*\b)?next\b", re.IGNORECASE)
#: Names of body fields with the URL of the next page, and with its cursor.
_NEXT_URL_FIELDS: Final = (
    "next",
    "next_page_uri",
    "nextPageUri",
    "next_url",
    "nextLink",
    "@odata.nextLink",
    "next_page_url",
)
_CURSOR_FIELDS: Final = (
    *("next_cursor", "nextCursor", "next_page_token", "nextPageToken", "next_marker", "nextMarker", "next_token"),
    *("nextToken", "cursor", "continuation", "continuationToken", "after", "next"),
)
_PAGING_OBJECT_FIELDS: Final = (
    "meta",
    "response_metadata",
    "paging",
    "pagination",
    "page",
    "links",
    "_links",
    "cursors",
)
_CURSOR_ARGUMENTS: Final = (
    *("cursor", "page_token", "pageToken", "PageToken", "marker", "next_token", "nextToken", "after"),
    *("starting_after", "continuationToken", "continuation", "next_cursor", "nextCursor"),
)
_PAGE_ARGUMENTS: Final = ("page", "Page", "page_number", "pageNumber")
_HAS_MORE_FIELDS: Final = ("has_more", "hasMore", "has_next", "hasNext", "has_next_page")
_LAST_ID_FIELDS: Final = ("last_id", "lastId")
_MAX_CURSOR_CHARS: Final = 4000


class _QueryParameter(NamedTuple):
    argument: str
    schema: Json


def next_page_arguments(
    operation: Operation, arguments: Mapping[str, Any], url: str, headers: Mapping[str, str], value: Any
) -> Json | None:
    """Return the tool arguments for the next page of results, or None if the next page is unknown.

    APIs announce the next page in one of a few ways: a `Link` header or a URL in the body, a cursor for a parameter, or
    a "has more" flag with a parameter that counts pages. If this cannot be converted to arguments for the same tool,
    the caller must read it from the response. A URL is never opened: only its query is parsed, and only if it has the
    same path as `url`, the request URL.
    """
    if operation.method != "GET":
        return None
    parameters = {
        each.name: _QueryParameter(each.argument, _argument_schema(operation, each.argument))
        for each in operation.parameters
        if each.location == "query" and not each.user_supplied
    }
    if not parameters:
        return None
    for next_url in _next_urls(headers, value):
        found = _from_next_url(parameters, urljoin(url, next_url), url)
        if found is not None and any(arguments.get(key) != each for key, each in found.items()):
            return {**arguments, **found}
    return _from_cursor(parameters, arguments, value) or _from_page_number(parameters, arguments, value)


def _argument_schema(operation: Operation, argument: str) -> Json:
    """Return a tool argument's JSON schema, with one `$ref` resolved, or an empty one if it is unknown."""
    schema = operation.tool.get("inputSchema", {})
    found = schema.get("properties", {}).get(argument, {})
    ref = found.get("$ref", "") if isinstance(found, dict) else ""
    if ref.startswith("#/$defs/"):
        found = schema.get("$defs", {}).get(ref.removeprefix("#/$defs/"), {})
    return found if isinstance(found, dict) else {}


def _next_urls(headers: Mapping[str, str], value: Any) -> Iterator[str]:
    link = headers.get("link", "")
    if len(link) <= _MAX_CURSOR_CHARS and (found := _NEXT_LINK.search(link)):
        yield found[1]
    for fields in _paging_objects(value):
        for name in _NEXT_URL_FIELDS:
            url = fields.get(name)
            url = url.get("href") if isinstance(url, dict) else url
            if isinstance(url, str) and ("/" in url or url.startswith("?")) and len(url) <= _MAX_CURSOR_CHARS:
                yield url


def _paging_objects(value: Any) -> Iterator[Json]:
    if isinstance(value, dict):
        yield value
        for name in _PAGING_OBJECT_FIELDS:
            if isinstance(value.get(name), dict):
                yield value[name]


def _from_next_url(parameters: Mapping[str, _QueryParameter], next_url: str, url: str) -> Json | None:
    """Return the tool arguments in the query of a next-page URL, or None if they do not fit.

    The URL's host is ignored, because nothing is sent there.
    """
    try:
        ours, theirs = urlsplit(url), urlsplit(next_url)
        pairs = parse_qsl(theirs.query, keep_blank_values=True, max_num_fields=100)
    except ValueError:
        return None
    if theirs.path != ours.path or not pairs or any(name not in parameters for name, _ in pairs):
        return None
    if len({name for name, _ in pairs}) != len(pairs):
        return None  # repeated names are a list with an unknown encoding
    return {parameters[name].argument: _convert(parameters[name], text) for name, text in pairs}


def _from_cursor(parameters: Mapping[str, _QueryParameter], arguments: Mapping[str, Any], value: Any) -> Json | None:
    parameter = next((parameters[name] for name in _CURSOR_ARGUMENTS if name in parameters), None)
    if parameter is None:
        return None
    for fields in _paging_objects(value):
        names = (
            *_CURSOR_FIELDS,
            *(_LAST_ID_FIELDS if any(fields.get(more) is True for more in _HAS_MORE_FIELDS) else ()),
        )
        if any(fields.get(more) is False for more in _HAS_MORE_FIELDS):
            return None
        for name in names:
            cursor = fields.get(name)
            if isinstance(cursor, str | int) and not isinstance(cursor, bool) and cursor not in ("", 0):
                if str(cursor) == str(arguments.get(parameter.argument)) or len(str(cursor)) > _MAX_CURSOR_CHARS:
                    return None
                return {**arguments, parameter.argument: _convert(parameter, str(cursor))}
    return None


def _from_page_number(
    parameters: Mapping[str, _QueryParameter], arguments: Mapping[str, Any], value: Any
) -> Json | None:
    parameter = next((parameters[name] for name in _PAGE_ARGUMENTS if name in parameters), None)
    more = any(fields.get(name) is True for fields in _paging_objects(value) for name in _HAS_MORE_FIELDS)
    if parameter is None or not more:
        return None
    page = arguments.get(parameter.argument, parameter.schema.get("default", 1))
    return {**arguments, parameter.argument: page + 1} if isinstance(page, int) and not isinstance(page, bool) else None


def _convert(parameter: _QueryParameter, text: str) -> Any:
    """Convert text from a URL or cursor to the parameter's type: integer, boolean, or string."""
    kind = parameter.schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    if "integer" in kinds and re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text)
    if "boolean" in kinds and text in ("true", "false"):
        return text == "true"
    return text
