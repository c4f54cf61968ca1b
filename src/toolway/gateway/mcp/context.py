"""The context of one client request: principal, view, and client data, whatever the protocol era and transport."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from toolway.gateway.mcp.view import EndpointView
from toolway.gateway.principals import Principal
from toolway.http.exchange import Exchange, HttpRequest
from toolway.protocol.versions import CALLBACK_CAPABILITIES, log_verbosity
from toolway.types import ClientCallbacks, Era, Json
from toolway.upstream.server_requests import RejectedServerRequest, check_server_request, clean_server_request

if TYPE_CHECKING:
    from toolway.gateway.mcp.responses import RpcResult

_REQUEST_ID: Final = re.compile(r"[!-~]{1,128}")  # visible ASCII characters
Notify = Callable[[str, Json], None]


def _discard_notification(method: str, params: Json) -> None:
    pass


class ForwardedCall(msgspec.Struct, frozen=True):
    """The data of a client's call that another cluster node forwards to this one."""

    call_id: str  # its id
    idempotency_key: str | None  # its idempotency key
    endpoint: str  # endpoint that the client used
    client_request_id: str = ""  # `X-Request-ID` that the client sent
    approved_by: str = ""  # who approved it at that node


class RequestContext(msgspec.Struct):
    """Principal, endpoint view and client data of one MCP request, independent of its transport."""

    principal: Principal
    view: EndpointView
    endpoint: str  # "", a toolset's name, or `server/name`
    era: Era
    capabilities: Json = {}  # server requests that the client can answer
    notify: Notify = _discard_notification  # sends a notification that belongs to this request
    callbacks: ClientCallbacks | None = None  # a legacy client, which can be sent requests during the call
    log_level: str | None = None  # lowest level that the client wants
    headers: Mapping[str, str] | None = None  # of a modern HTTP request, for arguments repeated there
    idempotency_key: str | None = None  # the `Idempotency-Key` header
    logs_without_level: bool = False  # True if the client wants log messages even without a level
    # For tracing:
    request_id: str | int | None = None
    version: str = ""  # of the protocol
    transport: str = "tcp"  # or pipe
    requested_name: str = ""  # the tool name that the client used
    forwarded: ForwardedCall | None = None  # set if another node forwards the call
    client_request_id: str = ""  # `X-Request-ID` that the client sent, to be logged with the call
    call_id: str = ""  # id for the call of this request; "" = a new one
    on_result: Callable[[RpcResult], None] | None = None  # gets the result of a flight that was handed over

    @property
    def accepts_server_requests(self) -> bool:
        """True if the client declares any capability to answer server requests, such as sampling."""
        return any(name in self.capabilities for name in CALLBACK_CAPABILITIES.values())

    def set_ids(self, exchange: Exchange) -> None:
        """Set the request's ids: the client's `X-Request-ID` if it sent one, or else an id from the gateway.

        An id that the gateway generates is also the id of the call.
        """
        self.client_request_id = client_request_id(exchange.request)
        self.call_id = exchange.request_id if not self.client_request_id else ""

    def wants_log_level(self, level: object) -> bool:
        """Return True if the client of this request wants log messages of this level."""
        if self.log_level is None:
            return self.logs_without_level
        return log_verbosity(level) <= log_verbosity(self.log_level)


def client_request_id(request: HttpRequest) -> str:
    """Return the `X-Request-ID` that a client sent, or "" if there is none or it is not acceptable.

    An acceptable id has up to 128 visible ASCII characters and comes in a single header.
    """
    given = request.headers.get("x-request-id")
    if given is None or "x-request-id" in request.repeated_headers or _REQUEST_ID.fullmatch(given) is None:
        return ""
    return given


def get_meta(params: Json) -> Json:
    meta = params.get("_meta")
    return meta if isinstance(meta, dict) else {}


def supports_server_request(capabilities: Json, method: str, params: Json) -> bool:
    """Return True if a client with these capabilities can answer this server request."""
    capability = CALLBACK_CAPABILITIES.get(method)
    declared = capabilities.get(capability) if capability is not None else None
    if not isinstance(declared, dict):
        return False
    if capability == "elicitation" and params.get("mode") == "url":
        return "url" in declared
    if capability == "elicitation":
        return not declared or "form" in declared
    if capability == "sampling":
        return "tools" not in params or "tools" in declared
    return True


def needed_capability(method: str, params: Json) -> str:
    """Return the capability that a client needs to answer this server request, such as `sampling.tools`."""
    if method == "sampling/createMessage" and "tools" in params:
        return "sampling.tools"
    return CALLBACK_CAPABILITIES.get(method, method)


#: In `_meta` of a server request to a client: the name of the server that sends it.
SERVER_META_KEY: Final = "toolway/server"

# A message with more characters or lines names its server at its end too: the beginning may be out of sight.
_LONG_MESSAGE_CHARS: Final = 400
_LONG_MESSAGE_LINES: Final = 10


def name_server(server: str, method: str, params: Json) -> Json:
    """Add the server's name to its request to a client, so the client sees who is asking.

    The name is added to `_meta` and in front of the message to the user. To the client, all requests come from the
    gateway, so without the name one server could pose as another. Control and invisible characters are removed
    because they could hide the name. For a similar reason, a server gets no context by sampling: to the client, the
    context of "this server" means all of the gateway's servers.
    """
    named = {**clean_server_request(params), "_meta": {**get_meta(params), SERVER_META_KEY: server}}
    if method == "elicitation/create":
        message = named.get("message")
        named["message"] = _name_message(server, message if isinstance(message, str) else "")
    elif method == "sampling/createMessage":
        named.pop("includeContext", None)
    return named


def _name_message(server: str, text: str) -> str:
    prefix, ending = f"[{server}] ", f"\n[{server}]"
    if not text.startswith(prefix):  # else another node has named it
        text = prefix + text
    is_long = len(text) > _LONG_MESSAGE_CHARS or text.count("\n") > _LONG_MESSAGE_LINES
    return text + ending if is_long and not text.endswith(ending) else text


def name_input_requests(server: str, result: Json) -> Json:
    """Add the server's name to all input requests in a result or task, to show the user who is asking.

    An input request that must not reach a client is left out. A task may contain one.
    """
    requests = result.get("inputRequests")
    if not isinstance(requests, dict):
        return result
    named = {key: _name_input_request(server, each) for key, each in requests.items()}
    return {**result, "inputRequests": {key: each for key, each in named.items() if each is not None}}


def name_demanded_visits(server: str, data: Json) -> Json:
    """Add the server's name to the elicitations that an error (-32042) demands.

    An elicitation that must not reach a client is left out.
    """
    if "elicitations" not in data:
        return data
    demanded = data["elicitations"] if isinstance(data["elicitations"], list) else []
    found = [{"method": "elicitation/create", "params": each} for each in demanded if isinstance(each, dict)]
    named = [_name_input_request(server, each) for each in found]
    return {**data, "elicitations": [each["params"] for each in named if each is not None]}


def _name_input_request(server: str, request: object) -> Json | None:
    if not isinstance(request, dict):
        return None
    method, params = str(request.get("method")), request.get("params")
    if not isinstance(params, dict):
        params = {}
    try:
        check_server_request(method, params)
    except RejectedServerRequest:
        return None
    return {**request, "params": name_server(server, method, params)}


# A legacy server learns the client capabilities when it connects, before any client calls. So the gateway declares all
# of them; a server request that the calling client does not support is rejected when it is made.
_ALL_CLIENT_CAPABILITIES: Final[Json] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}},
    "roots": {},
}


class NoHubCallbacks:
    """A gateway hub's `ClientCallbacks`, which rejects server requests that belong to no client's call.

    Only a client of the gateway could answer such a request, and here there is none.
    """

    @property
    def capabilities(self) -> Json:
        return _ALL_CLIENT_CAPABILITIES

    async def handle_request(self, server: str, method: str, params: Json) -> Json:
        raise LookupError(method)
