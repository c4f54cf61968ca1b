"""Binds an OpenAPI document to a server entry: operations, base URL, and headers per tool.

A document contains its API's URL, so someone who can change the document could redirect our credentials. Credentials
are therefore only sent to addresses that you chose: the entry's `url`, the origin of the document's URL, or a URL in a
document on this machine.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Final, NamedTuple
from urllib.parse import quote, urljoin

from toolway._async import run_in_daemon_thread
from toolway._version import __version__
from toolway.config.schema import Server
from toolway.http.client import HeaderBlock, HttpTarget, Origin, encode_headers
from toolway.parts.openapi import document_source
from toolway.parts.openapi.document import models
from toolway.parts.openapi.document.models import ApiDocument, BaseUrl, InvalidDocument, Operation, SecurityScheme
from toolway.parts.openapi.settings import ApiCredential, OpenApi, OpenApiFilter, settings_of
from toolway.secrets import remember_secret
from toolway.types import Certainty, Json
from toolway.upstream.process.spawner import Spawner
from toolway.upstream.transport import TransportError

_MAX_NOTES: Final = 20  # notes about single operations; the rest is counted
_PROTECTED_HEADERS: Final = frozenset({"authorization", "host", "user-agent"})  # arguments of a call never set these
_PARSER_MODULE: Final = "toolway.parts.openapi.document.loader"  # imports a YAML parser, which takes a while


@dataclass(frozen=True, slots=True)
class OperationBinding:
    """One API operation, with all parts of its requests that do not depend on the arguments.

    It contains credentials.
    """

    operation: Operation
    origin: Origin
    prefix: str  # start of every path
    head: HeaderBlock = field(repr=False)
    fixed_headers: frozenset[str] = field(repr=False)  # headers that arguments cannot change, in lower case
    query: str = field(repr=False)
    cookie: str = field(repr=False)
    missing_credentials: tuple[str, ...]  # credentials that the document requires and the entry lacks


@dataclass(frozen=True, slots=True)
class ApiBinding:
    """An OpenAPI document bound to one server entry: its tools, and the operation behind each tool."""

    title: str
    version: str
    instructions: str
    origin: Origin  # target of health checks
    tools: list[Json] = field(repr=False)
    bindings: Mapping[str, OperationBinding] = field(repr=False)
    notes: tuple[str, ...]  # remarks for the user


async def bind_document(
    data: bytes, source: str, server: Server, spawner: Spawner, environ: Mapping[str, str]
) -> ApiBinding:
    """Parse an OpenAPI document, and bind its operations to the server entry's base URL, headers, and credentials.

    This runs off the event loop, because large documents take seconds. Raises `TransportError` if the document is
    invalid or contains no usable operation.
    """
    openapi = settings_of(server)
    choice, preset_parameters = _operation_choice(openapi), _preset_parameters(server)
    try:
        document = await _parse_document(data, source, choice, preset_parameters, spawner, environ)
    except InvalidDocument as exc:
        raise document_source.document_error(exc.reason, exc.hint or "fix the document") from None
    return await run_in_daemon_thread(_bind_api, document, source, server)


async def _parse_document(
    data: bytes,
    source: str,
    choose: models.OperationSelection,
    preset_parameters: frozenset[str],
    spawner: Spawner,
    environ: Mapping[str, str],
) -> ApiDocument:
    if len(data) > document_source.MIN_SUBPROCESS_BYTES:
        # Unavailable, for example, in a frozen single-file program: then parse in a thread, which is slower.
        with suppress(document_source.SubprocessUnavailable):
            return await document_source.parse_in_subprocess(data, source, choose, preset_parameters, spawner, environ)
    return await run_in_daemon_thread(_parse_in_process, data, source, choose, preset_parameters)


def _parse_in_process(
    data: bytes, source: str, choose: models.OperationSelection, preset_parameters: frozenset[str]
) -> ApiDocument:
    document: ApiDocument = import_module(_PARSER_MODULE).load_document(
        data, source=source, selection=choose, user_supplied=preset_parameters
    )
    return document


def _bind_api(document: ApiDocument, source: str, server: Server) -> ApiBinding:
    openapi = settings_of(server)
    bindings: dict[str, OperationBinding] = {}
    unbound: list[tuple[Operation, NoBaseUrl]] = []
    for operation in document.operations:
        try:
            bindings[operation.name] = _bind_operation(operation, document, server)
        except NoBaseUrl as exc:
            unbound.append((operation, exc))
    if not bindings:
        raise _no_tools_error(document, source, unbound)
    for each in openapi.credentials:
        remember_secret(each.value)  # so it is masked, in every encoding
    tools = [binding.operation.tool for binding in bindings.values()]
    if not openapi.outputs:
        tools = [{key: value for key, value in tool.items() if key != "outputSchema"} for tool in tools]
    return ApiBinding(
        title=document.title,
        version=document.version,
        instructions=f"{document.title} {document.version}".strip(),
        origin=next(iter(bindings.values())).origin,
        tools=tools,
        bindings=bindings,
        notes=(*_credential_notes(bindings.values()), *_operation_notes(document, unbound)),
    )


def _bind_operation(operation: Operation, document: ApiDocument, server: Server) -> OperationBinding:
    openapi = settings_of(server)
    base = base_url_for(operation, document, server)
    credentials, missing = select_credentials(operation, document.security_schemes, openapi.credentials)
    headers = {"Accept": operation.accept or "*/*", "User-Agent": f"toolway/{__version__}"}
    headers["Accept-Encoding"] = "gzip, deflate" if server.limits.compression else "identity"
    configured = {**server.headers, **credentials.headers}
    names = {name.lower() for name in configured}
    headers = {name: value for name, value in headers.items() if name.lower() not in names}
    try:
        head = encode_headers({**headers, **configured})
    except ValueError as exc:
        hint = "fix `headers` or `openapi.security` in the server's entry"
        raise TransportError(str(exc), Certainty.NOT_SENT, code="E-HTTP-CONFIG", hint=hint) from None
    return OperationBinding(
        operation=operation,
        origin=base.target.origin,
        prefix=base.prefix,
        head=head,
        fixed_headers=frozenset(names | {name.lower() for name in headers} | _PROTECTED_HEADERS),
        query=credentials.query,
        cookie=credentials.cookie,
        missing_credentials=missing if server.auth is None and "authorization" not in names else (),
    )


def _no_tools_error(document: ApiDocument, source: str, unbound: list[tuple[Operation, NoBaseUrl]]) -> TransportError:
    if unbound:
        _, first = unbound[0]
        return TransportError(first.reason, Certainty.NOT_SENT, code=NO_BASE_URL_CODE, hint=first.hint)
    if document.skipped:
        first_skipped = document.skipped[0]
        return document_source.document_error(
            f"no operation of {source} can be a tool: {first_skipped.reason}", "fix the document"
        )
    if document.filtered_out:
        return document_source.document_error(
            f"none of the {document.filtered_out} operations of {source} is included", "change `include` or `exclude`"
        )
    return document_source.document_error(f"{source} has no operations", "check that it is an OpenAPI document")


def _credential_notes(bindings: Iterable[OperationBinding]) -> list[str]:
    """Return notes about credentials that the OpenAPI document requires but the entry does not have."""
    counts = Counter(name for binding in bindings for name in binding.missing_credentials)
    return [
        f"{count} operation{'s need' if count > 1 else ' needs'} the credential {name}, but the entry has none: add "
        f'"security": {{"{name}": "${{keyring:NAME}}"}} to its `openapi`'
        for name, count in counts.most_common(5)
    ]


def _operation_notes(document: ApiDocument, unbound: list[tuple[Operation, NoBaseUrl]]) -> list[str]:
    skipped = [f"{each.method} {each.path} is not a tool: {each.reason}" for each in document.skipped]
    skipped += [f"{each.method} {each.path} is not a tool: {problem.reason}" for each, problem in unbound]
    notes = [*skipped[:_MAX_NOTES], *document.warnings[:_MAX_NOTES]]
    left = max(0, len(skipped) - _MAX_NOTES) + max(0, len(document.warnings) - _MAX_NOTES)
    return [*notes, f"and {left} more like these"] if left else notes


def _operation_choice(openapi: OpenApi) -> models.OperationSelection:
    return models.OperationSelection(_to_picks(openapi.include), _to_picks(openapi.exclude))


def _to_picks(picks: OpenApiFilter) -> models.OperationFilter:
    return models.OperationFilter(
        tags=picks.tags, paths=picks.paths, methods=picks.methods, operations=picks.operations
    )


def _preset_parameters(server: Server) -> frozenset[str]:
    """Return the names of the request parameters that the server entry sets, which callers therefore cannot set."""
    openapi = settings_of(server)
    keys = {each.name for each in openapi.credentials if each.kind == "apiKey"}
    header = {openapi.idempotency_header} if openapi.idempotency_header is not None else set()
    return frozenset(keys | {name.lower() for name in (*keys, *server.headers, *header)})


# -- base URL ---------------------------------------------------------------------------------------------------------

NO_BASE_URL_CODE: Final = "E-OPENAPI-SERVER"

_NO_URL_REASON: Final = "the document has no URL for its API"


class NoBaseUrl(Exception):
    """Raised when no base URL can be used for an API operation. It has the reason and a hint."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


class RequestBase(NamedTuple):
    """Base URL of an API operation's requests."""

    target: HttpTarget  # its path is the start of every request path
    prefix: str  # that path without the slash at its end


def base_url_for(operation: Operation, document: ApiDocument, server: Server) -> RequestBase:
    """Return an API operation's base URL, from the entry or the OpenAPI document.

    Raises `NoBaseUrl` if the URL is missing or invalid, or must not receive the entry's credentials.
    """
    openapi = settings_of(server)
    if server.url is not None:
        return _parse_base_url(server.url)
    url = _first_url(operation.servers or document.servers, openapi.url)
    base = _parse_base_url(url)
    if has_credentials(server):
        # A document must not choose the receivers of credentials: only its own origin, or the origin of a local
        # document's API, gets them.
        trusted = _parse_base_url(openapi.url or _local_api_url(document)).target.origin
        if trusted != base.target.origin:
            source = f"document of {trusted}" if openapi.url is not None else f"document of an API at {trusted}"
            raise NoBaseUrl(
                f"the {source} points to an API at {base.target.origin}, which must not get the credentials",
                f'if that is the API, set its URL in a separate entry: "url": "{url}"',
            )
    return base


def _local_api_url(document: ApiDocument) -> str:
    """Return the API URL in an OpenAPI document, from its first server or first operation.

    This is used for documents that were not fetched from a URL.
    """
    named = (each.servers for each in document.operations)
    return _first_url(document.servers or next(filter(None, named), ()), None)


def _first_url(servers: Sequence[BaseUrl], source: str | None) -> str:
    return _absolute_url(servers[0] if servers else BaseUrl("/"), source)


def has_credentials(server: Server) -> bool:
    """Return True if the server entry has any API credential, header or OAuth setting."""
    openapi = settings_of(server)
    return bool(openapi.credentials or server.headers or server.auth is not None)


def _absolute_url(base: BaseUrl, source: str | None) -> str:
    if "://" in base.url.partition("?")[0]:
        return base.url
    if source is None:
        reason = (
            f"the document names only the relative URL {base.url!r} for its API" if base.url != "/" else _NO_URL_REASON
        )
        raise NoBaseUrl(reason, 'set the URL of the API in the entry: "url": "https://…"')
    return urljoin(source, base.url)


def _parse_base_url(url: str) -> RequestBase:
    try:
        target = HttpTarget.parse(url)
    except ValueError as exc:
        hint = 'set the URL of the API in the entry: "url": "https://…"'
        raise NoBaseUrl(f"the URL of the API is invalid: {exc}", hint) from None
    if "?" in target.path or "#" in url:
        hint = 'set it without them in the entry: "url": "https://…"'
        raise NoBaseUrl("the URL of the API has a query or a fragment", hint)
    return RequestBase(target, target.path.rstrip("/"))


# -- credentials ------------------------------------------------------------------------------------------------------

_COOKIE_SAFE: Final = "!#$&'()*+-./:<=>?@[]^_`{|}~"


@dataclass(frozen=True, slots=True)
class RequestCredentials:
    """Credentials that are added to every request of an API operation. Hidden in `repr`."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    query: str = field(default="", repr=False)  # encoded
    cookie: str = field(default="", repr=False)


def select_credentials(
    operation: Operation, schemes: Mapping[str, SecurityScheme], credentials: Iterable[ApiCredential]
) -> tuple[RequestCredentials, tuple[str, ...]]:
    """Return the credentials for an API operation, and the security schemes that have none."""
    credentials = tuple(credentials)
    by_scheme = {each.name: each for each in credentials if each.kind == "scheme"}
    chosen, missing = _choose_schemes(operation, by_scheme)
    chosen += [name for name in by_scheme if name not in chosen and _is_key_parameter(operation, schemes.get(name))]
    headers: dict[str, str] = {}
    query: list[str] = []
    cookies: list[str] = []
    always = [each for each in credentials if each.kind != "scheme"]
    located = [(_locate_credential(each, None), each) for each in always]
    located += [(_locate_credential(by_scheme[name], schemes.get(name)), by_scheme[name]) for name in chosen]
    for (location, name, value), _ in located:
        if location == "query":
            query.append(f"{quote(name, safe='')}={quote(value, safe='')}")
        elif location == "cookie":
            cookies.append(f"{name}={quote(value, safe=_COOKIE_SAFE)}")
        else:
            headers[name] = value
    return RequestCredentials(headers, "&".join(query), "; ".join(cookies)), missing if not always else ()


def _choose_schemes(operation: Operation, by_scheme: Mapping[str, ApiCredential]) -> tuple[list[str], tuple[str, ...]]:
    """Return the security schemes to use for an API operation, and the ones that have no credentials.

    This is the document's first alternative that the entry covers fully, or else the covered part of the first one.
    """
    for needed in operation.security:
        if needed and all(name in by_scheme for name in needed):
            return list(needed), ()
    if not operation.security or any(not needed for needed in operation.security):
        return [], ()
    first = operation.security[0]
    return [name for name in first if name in by_scheme], tuple(name for name in first if name not in by_scheme)


def _is_key_parameter(operation: Operation, scheme: SecurityScheme | None) -> bool:
    """Return True if an API key of this scheme is also a parameter of the operation.

    Some documents declare no security on such operations, and list the key among the parameters instead.
    """
    if scheme is None or scheme.kind != "apiKey":
        return False
    key_parameter = (scheme.location, scheme.parameter.lower())
    return any(
        each.user_supplied and (each.location, each.name.lower()) == key_parameter for each in operation.parameters
    )


def _locate_credential(credential: ApiCredential, scheme: SecurityScheme | None) -> tuple[str, str, str]:
    """Return a credential's location in the request (header, query, or cookie), name, and value."""
    if credential.kind == "apiKey":
        return credential.location, credential.name, credential.value
    if scheme is not None and scheme.kind == "apiKey":
        return scheme.location, scheme.parameter, credential.value
    if credential.kind == "basic" or (scheme is not None and scheme.scheme.lower() == "basic"):
        return "header", "Authorization", f"Basic {b64encode(credential.value.encode()).decode()}"
    if scheme is not None and scheme.kind == "http" and scheme.scheme.lower() != "bearer":
        return "header", "Authorization", f"{scheme.scheme} {credential.value}"
    return "header", "Authorization", f"Bearer {credential.value}"
