"""Logins to WebSocket servers: the token is in the handshake, and a rejected handshake starts the login."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

import pytest
from websockets.datastructures import Headers
from websockets.http11 import Response

from tests.auth.oauth_lab import Issuer
from toolway import AccessDenied, Hub
from toolway.testing import FakeWebSocket

pytestmark = pytest.mark.anyio

DESCRIBED_AT = "/.well-known/oauth-protected-resource/mcp"


class GuardedSocket(FakeWebSocket):
    """A WebSocket server that wants tokens of `issuer`."""

    def __init__(self, issuer: Issuer) -> None:
        super().__init__(era="modern")
        self._issuer = issuer
        self.shown: list[str] = []

    async def _on_handshake(self, connection: Any, request: Any) -> Response | None:
        own = f"http://127.0.0.1:{self.port}"
        if request.path == DESCRIBED_AT:
            described = {"resource": f"{own}/mcp", "authorization_servers": [self._issuer.issuer]}
            return _response(200, {"Content-Type": "application/json"}, json.dumps(described).encode())
        if request.path != "/mcp":
            return _response(404, {}, b"")
        self.shown.append(request.headers.get("Authorization", ""))
        if self.shown[-1].removeprefix("Bearer ") in self._issuer.valid:
            return None
        return _response(401, {"WWW-Authenticate": f'Bearer resource_metadata="{own}{DESCRIBED_AT}"'}, b"")


def _response(status: int, headers: dict[str, str], body: bytes) -> Response:
    whole = Headers({**headers, "Content-Length": str(len(body)), "Connection": "close"})
    return Response(status, HTTPStatus(status).phrase, whole, body)


@pytest.mark.promise("D4")
async def test_websocket_server_login_happens_automatically() -> None:
    async with Issuer() as issuer, GuardedSocket(issuer) as guarded:
        async with Hub({"ws": guarded.url}, login_callback=issuer.login, catalog_storage=None) as hub:
            assert (await hub.call_tool("ws.echo", {"text": "hi"})).text == "hi"
        assert issuer.made == {"registration": 1, "login": 1, "authorization_code": 1}
        assert guarded.shown[0] == "" and guarded.shown[-1].startswith("Bearer ")


async def test_websocket_server_without_login_hints_at_login() -> None:
    async with Issuer() as issuer, GuardedSocket(issuer) as guarded:
        async with Hub({"ws": guarded.url}, catalog_storage=None) as hub:
            with pytest.raises(AccessDenied) as caught:
                await hub.call_tool("ws.echo")
        assert (caught.value.code, caught.value.executed) == ("E-AUTH-LOGIN", "no")
