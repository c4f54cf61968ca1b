"""From a request to whoever answers it: the address, the token, the path, the era, in this order.

A path is compared as it came: nothing is decoded, folded or cut, so there is one spelling of every route.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec
from mcp_types.jsonrpc import INVALID_REQUEST, PARSE_ERROR

from toolway.gateway.admin import Admin
from toolway.gateway.answers import Answer, error
from toolway.gateway.browser import Browsers
from toolway.gateway.codes import QUOTA, SHUTTING_DOWN
from toolway.gateway.dashboard import Dashboard, is_here
from toolway.gateway.door import Door, Refused, cors, preflight, problem
from toolway.gateway.failures import Failure
from toolway.gateway.handshake_http import HandshakeHttp
from toolway.gateway.http.connection import Refusal
from toolway.gateway.http.exchange import Exchange
from toolway.gateway.http.messages import JSON, JSON_FIELDS, Fields, Request
from toolway.gateway.logins import Logins
from toolway.gateway.metrics import MetricsPage
from toolway.gateway.modern import Modern, is_modern
from toolway.gateway.principals import Principal
from toolway.gateway.refusals import Refusals
from toolway.gateway.selection import EVERYTHING, NOTHING, Selection, of_server
from toolway.gateway.sse import PATH as MESSAGES
from toolway.gateway.sse import Sse
from toolway.gateway.view import View
from toolway.gateway.visit import Tell
from toolway.hub import Hub
from toolway.model import Json
from toolway.protocol import wire
from toolway.upstream.transports.decoding import parse_heavy

ERRANDS: Final = "/node"  # where other gateways of a cluster bring what belongs to sessions
MAX_CALLS: Final = 4096  # requests of one principal under way at once
LIGHT: Final = wire.HEAVY_BYTES  # bytes of a message that is never heavy
MAX_VIEWS: Final = 1000  # keys with other scopes come and go; beyond that, what they see is made anew
_ALL: Final = (EVERYTHING, None)
_ANYBODY: Final = Principal("", "", "")
_OPEN: Final = frozenset({"/healthz", "/readyz"})  # to everybody who gets so far
_SERVER: Final = re.compile(r"/mcp/server/([a-z0-9-]{1,64})")
_GROUP: Final = re.compile(r"/mcp/([a-z0-9-]{1,64})")


class Admitted(msgspec.Struct, frozen=True, gc=False):
    """What the head of a request has shown."""

    version: int  # of the door that saw it
    principal: Principal
    fields: tuple[tuple[str, str], ...]  # of every response
    endpoint: str | None  # of MCP; None for other paths


class App:
    """`groups` are read anew at every request: they change with the configuration."""

    def __init__(
        self,
        hub: Hub,
        door: Door,
        modern: Modern,
        handshake: HandshakeHttp,
        sse: Sse,
        admin: Admin,
        dashboard: Dashboard,
        browsers: Browsers,
        groups: Callable[[], Mapping[str, Selection]],
    ) -> None:
        self._hub = hub
        self._door = door
        self._modern = modern
        self._handshake = handshake
        self._sse = sse
        self._admin = admin
        self._dashboard = dashboard
        self._browsers = browsers
        self._groups = groups
        self._logins = Logins(hub, self._sees)
        self._refusals = Refusals(hub.emit)
        self._views: dict[tuple[str, tuple[str, ...] | None], tuple[Selection, View]] = {}
        self._under_way: dict[str, set[Exchange]] = {}  # by principal
        self.metrics: MetricsPage | None = None
        self.ready = True  # what balancers are told
        self.leaving: Callable[[], bool] | None = None  # in a cluster: whether this node was told to take nothing more
        self.errand: Callable[[Json, Tell], Awaitable[Json]] | None = None  # in a cluster; raises `Failure`
        self.refusing = False  # new work is turned away: the gateway ends

    async def handle(self, exchange: Exchange) -> None:
        request = exchange.request
        admitted: Admitted | None = request.notes.admitted
        if admitted is None or admitted.version != self._door.version:
            admitted = self._let_in(exchange)
            if admitted is None:
                return
        exchange.fields = admitted.fields
        exchange.known()
        principal, endpoint = admitted.principal, admitted.endpoint
        mine = self._under_way.get(principal.id)
        if mine is None:
            mine = self._under_way[principal.id] = set()
        if len(mine) >= MAX_CALLS:
            self._turn_away(exchange, 429, QUOTA, "too many requests of yours are under way")
            return
        mine.add(exchange)
        try:
            if endpoint is not None and exchange.request.method == "POST":
                if len(exchange.request.body) <= LIGHT:
                    message = self._message(exchange)
                else:
                    message = await self._large(exchange)
                work = self._mcp(exchange, message, principal, endpoint) if message is not None else None
                if work is not None:
                    await work
            else:
                await self._elsewhere(exchange, principal, endpoint)
        finally:
            mine.discard(exchange)
            if not mine and self._under_way.get(principal.id) is mine:
                del self._under_way[principal.id]

    def _let_in(self, exchange: Exchange) -> Admitted | None:
        """Whoever may go further; all others are answered here."""
        request = exchange.request
        try:
            self._door.check_address(request)
            if request.method == "OPTIONS" and "origin" in request.headers:
                exchange.reply(204, b"", preflight(request))
                return None
            exchange.fields = cors(request)
            if request.path in _OPEN:
                self._health(exchange)
                return None
            if is_here(request.path):
                self._dashboard.handle(exchange)
                return None
            return self._admit(request)
        except Refused as refused:
            self._refusals.add(refused.status, request.path)
            exchange.reply(refused.status, refused.body, refused.fields)
            return None

    def _admit(self, request: Request) -> Admitted:
        """Equal heads are let in alike, until keys or names change; but a browser's session has an end of its own.
        Raises `Refused`."""
        if "cookie" in request.headers and "authorization" not in request.headers and _is_admin(request.path):
            person = self._browsers.who(request)
            if person is not None:
                return Admitted(self._door.version, person, tuple(cors(request)), None)
        principal = self._door.who(request)
        admitted = Admitted(self._door.version, principal, tuple(cors(request)), _endpoint(request.path))
        request.notes.admitted = admitted
        return admitted

    def greet(self, request: Request) -> Refusal | str:
        """The same by the head of a request with a body, so that nobody's is read who is refused anyway; or who it is
        that may send it."""
        admitted: Admitted | None = request.notes.admitted
        if admitted is not None and admitted.version == self._door.version:
            return admitted.principal.id
        page: Fields = ()
        try:
            self._door.check_address(request)
            page = cors(request)
            if request.path in _OPEN or is_here(request.path):
                raise Refused(413, "nothing is read here")
            return self._admit(request).principal.id
        except Refused as refused:
            self._refusals.add(refused.status, request.path)
            return refused.status, refused.body, (*refused.fields, *page)

    def shut_out(self, principal: str) -> None:
        """A key was revoked: whatever its holder still has open ends."""
        for exchange in list(self._under_way.get(principal, ())):
            exchange.abort()
        self._logins.end(f"key:{principal}")

    def _health(self, exchange: Exchange) -> None:
        well = exchange.request.path == "/healthz" or (self.ready and not (self.leaving and self.leaving()))
        exchange.reply(200 if well else 503, b'{"ok":true}' if well else b'{"ok":false}', JSON_FIELDS)

    async def _elsewhere(self, exchange: Exchange, principal: Principal, endpoint: str | None) -> None:
        path = exchange.request.path
        if principal.node:
            await self._of_node(exchange)
        elif self.refusing and exchange.request.method == "GET" and (endpoint is not None or path == "/sse"):
            self._refuse(exchange)
        elif endpoint is not None:
            await self._of_session(exchange, principal, endpoint)
        elif path == "/sse" and exchange.request.method == "GET":
            view = self.view(principal, "")
            assert view is not None
            await self._sse.open(exchange, principal, view)
        elif path == MESSAGES and exchange.request.method == "POST":
            message = await self._large(exchange)
            if message is not None and self.refusing and message.kind == "request":
                self._refuse(exchange, message.id)
            elif message is not None:
                await self._sse.post(exchange, message, principal)
        elif _is_admin(path):
            await self._admin.handle(exchange, principal)
        elif path.startswith("/login/"):
            await self._logins.handle(exchange, principal)
        elif path == "/metrics" and self.metrics is not None:
            await self.metrics.handle(exchange, principal)
        else:
            exchange.reply(
                *problem(404, "there is nothing at this path", endpoints=["/mcp", "/sse", "/admin", "/dashboard"])
            )

    async def _of_node(self, exchange: Exchange) -> None:
        """Another gateway of our cluster brings what belongs to a session that is here."""
        if exchange.request.path != ERRANDS or exchange.request.method != "POST" or self.errand is None:
            exchange.reply(*problem(403, "a node brings calls, and nothing else"))
            return
        message = await self._large(exchange)
        if message is None:
            return
        answer = Answer(exchange, message.id)
        try:
            if message.kind != "request":
                raise Failure(INVALID_REQUEST, "an errand is a request")
            answer.result(await self.errand(message.body, answer.tell))
        except Failure as failure:
            failure.status = 200  # it says itself what it means
            answer.failure(failure)
        finally:
            answer.stop()

    # -- MCP ----------------------------------------------------------------------------------------------------------

    def _mcp(
        self, exchange: Exchange, message: wire.Message, principal: Principal, endpoint: str
    ) -> Awaitable[None] | None:
        """What answers a message; None where it is refused here."""
        view = self.view(principal, endpoint) if not principal.node else self.view_of_server(endpoint)
        if view is None:
            exchange.reply(*problem(404, "there is no such endpoint"))
        elif self.refusing and message.kind == "request":
            self._refuse(exchange, message.id)
        elif principal.node or is_modern(exchange.request, message):
            return self._modern.handle(exchange, message, principal, view, endpoint)
        else:
            return self._handshake.post(exchange, message, principal, view, endpoint)
        return None

    async def _of_session(self, exchange: Exchange, principal: Principal, endpoint: str) -> None:
        """What is no POST belongs to a session."""
        method, view = exchange.request.method, self.view(principal, endpoint)
        if view is None:
            exchange.reply(*problem(404, "there is no such endpoint"))
        elif method == "GET" and _is_handshake(exchange):
            await self._handshake.get(exchange, principal, view, endpoint)
        elif method == "DELETE" and _is_handshake(exchange):
            await self._handshake.delete(exchange, principal, view, endpoint)
        else:
            status, body, fields = problem(405, "only POST, and GET and DELETE within a session")
            exchange.reply(status, body, (*fields, ("allow", "POST")))

    def _message(self, exchange: Exchange) -> wire.Message | None:
        """The JSON-RPC message of a POST; None where it was refused."""
        try:
            return wire.parse(exchange.request.body) if _is_json(exchange) else None
        except wire.BadMessage as bad:
            _refuse_message(exchange, bad)
            return None

    async def _large(self, exchange: Exchange) -> wire.Message | None:
        """The same for one that may take long to read."""
        body = exchange.request.body
        if not wire.is_heavy(body):
            return self._message(exchange)
        try:
            return await parse_heavy(body, "") if _is_json(exchange) else None
        except wire.BadMessage as bad:
            _refuse_message(exchange, bad)
            return None

    def _refuse(self, exchange: Exchange, id_: wire.Id | None = None) -> None:
        """Nothing new is begun; what belongs to something that runs (a cancellation, an answer) still comes through."""
        self._turn_away(exchange, 503, SHUTTING_DOWN, "the gateway is shutting down", id_)

    def _turn_away(self, exchange: Exchange, status: int, code: int, why: str, id_: wire.Id | None = None) -> None:
        data = {"executed": "no", "certainty": "C0", "retryable": True, "retryAfterMs": 1000, "attempts": 0}
        exchange.reply(status, error(id_, code, why, data), (*JSON_FIELDS, ("retry-after", "1")))

    # -- what there is to see -----------------------------------------------------------------------------------------

    def view(self, principal: Principal, endpoint: str) -> View | None:
        """What a principal sees at an endpoint; None where there is no such thing for them."""
        selection, alone = self._selection(endpoint)
        if selection is None or not principal.may_use(endpoint):
            return None
        key = (endpoint, principal.scopes)
        known = self._views.get(key)
        if known is None or (known[0] is not selection and known[0] != selection):
            if len(self._views) >= MAX_VIEWS:
                self._views = {}
            permitted = self._permitted(principal.scopes)
            known = (selection, View(self._hub.catalog, lambda: self._hub.servers, selection, permitted, alone))
            self._views[key] = known
        return known[1]

    def view_of_server(self, endpoint: str) -> View | None:
        """All of one server, for another node: what its caller may see was decided there."""
        return self.view(_ANYBODY, endpoint) if endpoint.startswith("server/") else None

    def renew_views(self) -> None:
        """The configuration has changed, and with it what groups hold, for those too who look at one already."""
        for key, (_, view) in list(self._views.items()):
            endpoint, scopes = key
            selection, _ = self._selection(endpoint)
            view.choose(selection if selection is not None else NOTHING, self._permitted(scopes))
            if selection is not None:
                self._views[key] = (selection, view)
            else:
                del self._views[key]

    def _selection(self, endpoint: str) -> tuple[Selection | None, str | None]:
        if not endpoint:
            return _ALL
        if endpoint.startswith("server/"):
            name = endpoint.removeprefix("server/")
            return (of_server(name), name) if name in self._hub.servers else (None, None)
        return self._groups().get(endpoint), None

    def _sees(self, principal: Principal, server: str) -> bool:
        """Whether a principal may see anything of a server."""
        return self._permitted(principal.scopes).touches(server)

    def _permitted(self, scopes: tuple[str, ...] | None) -> Selection:
        """All that a principal may see, whatever the endpoint: what its groups hold together."""
        if scopes is None:
            return EVERYTHING
        servers = [of_server(scope.removeprefix("server/")) for scope in scopes if scope.startswith("server/")]
        groups = [group for scope in scopes if (group := self._groups().get(scope)) is not None]
        return Selection.union([*servers, *groups])


def _is_json(exchange: Exchange) -> bool:
    """Whether a body says that it is JSON; if not, it is refused."""
    content = exchange.request.headers.get("content-type", "")
    if content == JSON or content.partition(";")[0].strip().lower() == JSON:
        return True
    exchange.reply(415, error(None, INVALID_REQUEST, f"the content type must be {JSON}"), JSON_FIELDS)
    return False


def _refuse_message(exchange: Exchange, bad: wire.BadMessage) -> None:
    code = INVALID_REQUEST if bad.reason.startswith(_NO_ENVELOPE) else PARSE_ERROR
    exchange.reply(400, error(bad.id, code, bad.reason), JSON_FIELDS)


_NO_ENVELOPE: Final = ("not a JSON-RPC", "neither a request", "params that", "an id that")


def _endpoint(path: str) -> str | None:
    if path == "/mcp":
        return ""
    server = _SERVER.fullmatch(path)
    if server is not None:
        return f"server/{server[1]}"
    group = _GROUP.fullmatch(path)
    return group[1] if group is not None and group[1] != "server" else None


def _is_admin(path: str) -> bool:
    return path == "/admin" or path.startswith("/admin/")


def _is_handshake(exchange: Exchange) -> bool:
    return "mcp-session-id" in exchange.request.headers
