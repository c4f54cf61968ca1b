"""An authorization server and a server that wants its tokens, on real ports.

    async with Issuer() as issuer, Guarded(issuer) as guarded:
        hub = Hub({"guarded": guarded.url}, login=issuer.login)

The issuer registers whoever asks, asks no person, hands out refresh tokens that work once, and takes the second use of
one for theft, as real ones do. `issuer.fault` makes its token endpoint misbehave; `seen` is all that it was ever told.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
from collections import Counter
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import httpx2

from toolway.testing import FakeHttp
from toolway.testing.http_endpoint import Endpoint, FakeExchange
from toolway.testing.http_server import SseEndpoint

Json = dict[str, Any]


class Issuer(FakeHttp):
    def __init__(self, **options: Any) -> None:
        super().__init__(era="modern", **options)
        self.endpoint = _IssuerEndpoint(self)
        self.made: Counter[str] = Counter()  # registrations, logins and tokens by grant
        self.seen: list[str] = []  # requests, whole
        self.fault = ""  # of the token endpoint: status=…, slow, silent, wider, issuer, junk, huge
        self.lifetime: float = 3600
        self.scope: str | None = None  # granted instead of what is asked for
        self.metadata: Json = {}  # said of itself, next to or instead of what is true
        self.clients: dict[str, str] = {}
        self.codes: dict[str, Json] = {}
        self.valid: dict[str, str] = {}  # access tokens and their scopes
        self.refresh: dict[str, Json] = {}
        self.used: set[str] = set()  # refresh tokens

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def login(self, server: str, url: str) -> str:
        """A browser whose user agrees to everything."""
        self.made["login"] += 1
        # Without verify=False each client loads all CA certificates: 60 ms in the event loop of the hub under test.
        async with httpx2.AsyncClient(verify=False) as client:
            return str((await client.get(url, follow_redirects=False)).headers["location"])

    def expire(self) -> None:
        """No access token is good any more, whatever was said of its life."""
        self.valid.clear()

    def tokens(self, scope: str, client: str) -> Json:
        access, refresh = f"access-{secrets.token_hex(16)}", f"refresh-{secrets.token_hex(16)}"
        self.valid[access] = scope
        self.refresh[refresh] = {"client": client, "scope": scope}
        answer = {"access_token": access, "token_type": "Bearer", "refresh_token": refresh, "scope": scope}
        return {**answer, "expires_in": self.lifetime}


class _IssuerEndpoint(Endpoint):
    def __init__(self, issuer: Issuer) -> None:
        super().__init__(issuer.server, issuer.endpoint.faults, "json")
        self.issuer = issuer

    async def serve(self, exchange: FakeExchange) -> None:
        request = exchange.request
        self.issuer.seen.append(f"{request.method} {request.target} {request.headers} {request.body.decode()}")
        path = urlsplit(request.target).path
        if path == "/.well-known/oauth-authorization-server":
            exchange.respond_json(self._metadata())
        elif path == "/register":
            self.issuer.made["registration"] += 1
            client = f"client-{secrets.token_hex(8)}"
            self.issuer.clients[client] = f"secret-{secrets.token_hex(8)}"
            given = json.loads(request.body)
            exchange.respond_json({**given, "client_id": client, "client_secret": self.issuer.clients[client]}, 201)
        elif path == "/authorize":
            self._authorize(exchange, {k: v[0] for k, v in parse_qs(urlsplit(request.target).query).items()})
        elif path == "/token":
            await self._token(exchange, {k: v[0] for k, v in parse_qs(request.body.decode()).items()})
        else:
            exchange.respond(404)

    def _metadata(self) -> Json:
        own = self.issuer.issuer
        return {
            "issuer": own,
            "authorization_endpoint": f"{own}/authorize",
            "token_endpoint": f"{own}/token",
            "registration_endpoint": f"{own}/register",
            "code_challenge_methods_supported": ["S256"],
            "response_types_supported": ["code"],
            **self.issuer.metadata,
        }

    def _authorize(self, exchange: FakeExchange, asked: Json) -> None:
        code = secrets.token_hex(8)
        self.issuer.codes[code] = asked
        back = urlencode({"code": code, "state": asked["state"]})
        exchange.extra_headers["Location"] = f"{asked['redirect_uri']}?{back}"
        exchange.respond(302)

    async def _token(self, exchange: FakeExchange, form: Json) -> None:
        fault, _, value = self.issuer.fault.partition("=")
        self.issuer.made[form["grant_type"]] += 1
        if fault == "status":
            return exchange.respond_json(
                {"error": "temporarily_unavailable", "error_description": f"{form}"}, int(value)
            )
        if fault == "slow":
            await asyncio.sleep(30)
        if fault == "junk":
            return exchange.respond_json({"access_token": 7})
        if fault == "huge":
            return exchange.respond_json({"access_token": "x" * 1_000_000, "token_type": "Bearer"})
        answer = self._answer(exchange, form)
        if "error" not in answer and fault == "wider":
            answer["scope"] += " everything"
        if "error" not in answer and fault == "issuer":
            answer["iss"] = "https://other.example"
        return exchange.respond_json(answer, 400 if "error" in answer else 200)

    def _answer(self, exchange: FakeExchange, form: Json) -> Json:
        client = self._client(exchange, form)
        if client is None:
            return {"error": "invalid_client"}
        if form["grant_type"] == "client_credentials":
            return self.issuer.tokens(form.get("scope", ""), client)
        if form["grant_type"] == "authorization_code":
            asked = self.issuer.codes.pop(form["code"], None)
            digest = hashlib.sha256(form["code_verifier"].encode()).digest()
            challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
            if asked is None or asked["code_challenge"] != challenge or asked["client_id"] != client:
                return {"error": "invalid_grant"}
            scope = self.issuer.scope if self.issuer.scope is not None else asked.get("scope", "")
            return self.issuer.tokens(scope, client)
        token = form["refresh_token"]
        if token in self.issuer.used:  # stolen: no one who holds one of this family keeps it
            self.issuer.refresh.clear()
        known = self.issuer.refresh.get(token)
        if known is None or known["client"] != client:
            return {"error": "invalid_grant"}
        if self.issuer.fault not in ("wider", "issuer"):
            self.issuer.used.add(token)
            del self.issuer.refresh[token]
        return self.issuer.tokens(known["scope"], client)

    def _client(self, exchange: FakeExchange, form: Json) -> str | None:
        shown = exchange.request.headers.get("authorization", "")
        if not shown.startswith("Basic "):
            return None
        name, _, secret = base64.b64decode(shown[6:]).decode().partition(":")
        return unquote(name) if self.issuer.clients.get(unquote(name)) == unquote(secret) else None


class Guarded(FakeHttp):
    """A server that wants tokens of `issuer`, and `needs` scopes for tools by their names."""

    def __init__(self, issuer: Issuer, **options: Any) -> None:
        super().__init__(**{"era": "modern", **options})
        self.issuer = issuer
        self.trusts = ""  # the issuer it names, if it is not the one whose tokens it takes
        self.needs: dict[str, str] = {}
        self.refuses = False  # whatever it is sent for a tool
        self.open = False  # to everybody, for now
        self.resource = ""  # what it says it is, if it is not its own address
        self.described_at = ""  # where it says that it is described, if not at its own address
        self.sent: list[str] = []  # Authorization headers of calls of tools
        self.endpoint = (_GuardedSse if self.transport == "sse" else _GuardedEndpoint)(self)

    async def __aenter__(self) -> Self:
        await self.start()
        return self


class _GuardedEndpoint(Endpoint):
    def __init__(self, guarded: Guarded) -> None:
        super().__init__(guarded.server, guarded.endpoint.faults, guarded.endpoint.response_format)
        self.guarded = guarded

    async def serve(self, exchange: FakeExchange) -> None:
        guarded, request = self.guarded, exchange.request
        own = f"http://127.0.0.1:{guarded.port}"
        if "/.well-known/oauth-protected-resource" in request.target:
            issuer = guarded.trusts or guarded.issuer.issuer
            return exchange.respond_json(
                {"resource": guarded.resource or f"{own}{self.path}", "authorization_servers": [issuer]}
            )
        shown = request.headers.get("authorization", "")
        message = json.loads(request.body) if request.body else {}
        tool = message["params"]["name"] if message.get("method") == "tools/call" else ""
        if tool:
            guarded.sent.append(shown)
        described_at = guarded.described_at or f"{own}/.well-known/oauth-protected-resource{self.path}"
        metadata = f'resource_metadata="{described_at}"'
        scope = guarded.issuer.valid.get(shown.removeprefix("Bearer "))
        if guarded.open:
            return await super().serve(exchange)
        if scope is None or (tool and guarded.refuses):
            exchange.extra_headers["WWW-Authenticate"] = f'Bearer scope="base", {metadata}'
            return exchange.respond(401)
        need = guarded.needs.get(tool)
        if need is not None and need not in scope.split():
            exchange.extra_headers["WWW-Authenticate"] = (
                f'Bearer error="insufficient_scope", scope="{need}", {metadata}'
            )
            return exchange.respond(403)
        return await super().serve(exchange)


class _GuardedSse(_GuardedEndpoint, SseEndpoint):
    """The same over the transport of 2024-11-05."""
