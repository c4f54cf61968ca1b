"""An issuer that exchanges tokens, servers that want them, and a gateway between them, all on real ports."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs

from tests.auth.oauth_lab import Guarded
from tests.gateway.edge_lab import TOKEN, Edge
from tests.parts.identity.issuer import SETTINGS, Issuer, connect_login
from toolway.auth.token_exchange import ACCESS_TOKEN_TYPE, EXCHANGE_GRANT, ID_JAG_TYPE, JWT_BEARER_GRANT
from toolway.config.server_entry import parse_entry
from toolway.gateway.gateway import Gateway
from toolway.gateway.mcp.context import NoHubCallbacks
from toolway.gateway.principals import FileApiKeyStore
from toolway.hub.core import HubCore
from toolway.hub.core_options import Reporting, ServerDefaults
from toolway.network import NetworkPolicy
from toolway.testing import FakeHttp
from toolway.testing.http_endpoint import Endpoint, FakeExchange

Json = dict[str, Any]
SECRET = "secret-of-the-gateway"


class ExchangeIssuer(FakeHttp):
    """Issuer with a token endpoint: RFC 8693, the form of Entra, and identity assertions."""

    def __init__(self) -> None:
        super().__init__(era="modern")
        self.endpoint = _TokenEndpoint(self)
        self.forms: list[Json] = []  # of all requests to the token endpoint
        self.exchanged: Counter[tuple[str, str]] = Counter()  # person and audience
        self.valid: dict[str, str] = {}  # access tokens and their scopes
        self.owners: dict[str, str] = {}  # of those tokens
        self.answer: Json = {}  # said in a token response, instead of what is true
        self.status = 200
        self.raw_status = 200  # of the answer to an exchange that was made
        self.lifetime = 3600

    async def __aenter__(self) -> Self:
        await self.start()
        self.people = Issuer(self.issuer)
        return self

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def token(self, person: str = "alice", **claims: Any) -> str:
        return self.people.token(sub=person, **claims)


class _TokenEndpoint(Endpoint):
    def __init__(self, issuer: ExchangeIssuer) -> None:
        super().__init__(issuer.server, issuer.endpoint.faults, "json")
        self.issuer = issuer

    async def serve(self, exchange: FakeExchange) -> None:
        issuer, request = self.issuer, exchange.request
        if request.target == "/.well-known/openid-configuration":
            return exchange.respond_json({"issuer": issuer.issuer, "token_endpoint": f"{issuer.issuer}/token"})
        if request.target != "/token":
            return exchange.respond(404)
        form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        shown = request.headers.get("authorization", "")
        issuer.forms.append({**form, "client": shown and base64.b64decode(shown[6:]).decode()})
        if issuer.status != 200:
            return exchange.respond_json({"error": "invalid_grant", "error_description": str(form)}, issuer.status)
        person = _subject(form.get("subject_token") or form["assertion"])
        audience = form.get("resource", "")
        issuer.exchanged[person, audience] += 1
        kind = form.get("requested_token_type", ACCESS_TOKEN_TYPE)
        token = f"exchanged-{person}-{len(issuer.forms)}"
        if kind == ID_JAG_TYPE:
            token = f"h.{base64.urlsafe_b64encode(json.dumps({'sub': person}).encode()).decode()}.s"
        else:
            issuer.valid[token], issuer.owners[token] = form.get("scope", ""), person
        said = {"access_token": token, "token_type": "Bearer", "expires_in": issuer.lifetime, "issued_token_type": kind}
        if form["grant_type"] == JWT_BEARER_GRANT:
            del said["issued_token_type"]
        assert form["grant_type"] in (EXCHANGE_GRANT, JWT_BEARER_GRANT)
        scope = {"scope": form["scope"]} if "scope" in form else {}
        return exchange.respond_json({**said, **scope, **issuer.answer}, issuer.raw_status)


def _subject(token: str) -> str:
    payload = token.split(".")[1]
    return str(json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["sub"])


class Target(Guarded):
    """Server that accepts tokens of one issuer, and remembers all headers and bodies that it got."""

    def __init__(self, issuer: ExchangeIssuer, **options: Any) -> None:
        super().__init__(issuer, **options)  # type: ignore[arg-type]
        self.seen: list[str] = []
        serve = self.endpoint.serve

        async def recorded(exchange: FakeExchange) -> None:
            self.seen.append(f"{exchange.request.target} {exchange.request.headers} {exchange.request.body!r}")
            await serve(exchange)

        self.endpoint.serve = recorded  # type: ignore[method-assign]

    def callers(self, issuer: ExchangeIssuer) -> Counter[str]:
        """The users on whose behalf tools were called."""
        return Counter(issuer.owners.get(each.removeprefix("Bearer "), "?") for each in self.sent)


def exchange_auth(issuer: ExchangeIssuer, **more: Any) -> Json:
    client = {"issuer": issuer.issuer, "clientId": "gateway", "clientSecret": SECRET}
    return {"type": "exchange", "scopes": ["read"], **client, **more}


@asynccontextmanager
async def on_behalf(
    folder: Path,
    issuer: ExchangeIssuer,
    targets: Mapping[str, Target],
    auth: Json | None = None,
    audit: Path | None = None,
) -> AsyncIterator[Edge]:
    """A gateway with a login at the issuer, before servers that it calls on behalf of users."""
    async with AsyncExitStack() as stack:
        for target in targets.values():
            await stack.enter_async_context(target)
        given = auth if auth is not None else exchange_auth(issuer)
        entries = {name: parse_entry({"url": target.url, "auth": given}) for name, target in targets.items()}
        here = ServerDefaults(network_policy=NetworkPolicy(("127.0.0.1",)))
        keyring = FileApiKeyStore(folder / "keys.json", TOKEN)
        hub = await stack.enter_async_context(
            HubCore(entries, callbacks=NoHubCallbacks(), defaults=here, reporting=Reporting(audit))
        )
        gateway = Gateway(hub, b"k" * 32, keyring)
        port = await gateway.listen("127.0.0.1", 0)
        settings = replace(SETTINGS, issuer=issuer.issuer)
        login = connect_login(gateway, settings, {"eng": ("*",)}, issuer.people.fetch)
        await login.keys.refresh()
        try:
            yield Edge(hub, gateway, keyring, port, targets)
        finally:
            await login.close()
            hurry = asyncio.Event()
            hurry.set()
            await gateway.drain(hurry, 0, 0)
