"""An API as a server, over real sockets: its document, its calls, its end."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.faults.fault_lab import until
from tests.faults.matrix.openapi.api_server import DOCUMENT, Turn, api
from tests.upstream.raw_http import Conn, Peer, Received, json_response, peer, reacting, response
from toolway import AccessDenied, Hub, InvalidArguments, OutcomeUnknown, ServerUnavailable
from toolway.config.server_entry import parse_entry
from toolway.events import CatalogChanged
from toolway.hub.core import HubCore
from toolway.hub.environment import HubEnvironment
from toolway.parts.openapi import document_source
from toolway.parts.openapi.transport import OpenApiTransport
from toolway.types import AuthChallenge
from toolway.upstream.process.spawner import Spawner

pytestmark = pytest.mark.anyio


class DocumentServer:
    """Where a document is fetched from; what it answers can be changed."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.answer = json_response(document, ETag='"one"')
        self.requests: list[Received] = []
        self.peer = Peer()

    async def react(self, conn: Conn, request: Received) -> None:
        self.requests.append(request)
        known = request.headers.get("if-none-match", "nothing")
        await conn.send(response(304) if known.encode() in self.answer[:300] else self.answer)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.peer.port}/openapi.json?token=canary-of-document"


@asynccontextmanager
async def shop(document: dict[str, Any] | None = None) -> AsyncIterator[DocumentServer]:
    made = DocumentServer(document or DOCUMENT)
    async with peer(reacting(made.react)) as made.peer:
        yield made


@asynccontextmanager
async def hub_of(entry: dict[str, Any], **options: Any) -> AsyncIterator[Hub]:
    async with Hub({"api": entry}, catalog_storage=None, **options) as hub:
        await hub.wait_ready("api", timeout=20)
        yield hub


# -- the document -----------------------------------------------------------------------------------------------------


async def test_document_is_cached_and_used_when_fetch_fails(tmp_path: Path):
    async with api() as server, shop() as where:
        entry = server.entry()
        entry["openapi"] = {"url": where.url}
        async with hub_of(entry) as hub:
            assert len(hub.known_tools()) == 7
            assert hub.status()["api"].problems == ()
        async with hub_of(entry):  # asked for another version, and there is none
            assert [request.headers.get("if-none-match") for request in where.requests] == [None, '"one"']
        where.answer = response(500, b"out of order")
        async with hub_of(entry) as hub:
            assert len(hub.known_tools()) == 7
            assert "a cached copy" in hub.status()["api"].problems[0]
            await hub.call_tool("api.look", {"nonce": "x"})
        for status in (401, 404):
            where.answer = response(status, b"no such thing")
            async with Hub({"api": entry}, catalog_storage=None) as hub:
                with pytest.raises(ServerUnavailable, match="not available") as caught:
                    await hub.wait_ready("api")
                assert caught.value.code == "E-OPENAPI-DOCUMENT" and "no such thing" in caught.value.detail
                assert "canary" not in str(caught.value.__dict__)
    kept = list((tmp_path / "cache").rglob("*.doc"))
    assert len(kept) == 1 and kept[0].stat().st_mode & 0o077 == 0
    kept[0].write_bytes(b'["","",""]\n{}')  # someone else's, or torn: it is not used


async def test_changed_document_changes_tools(monkeypatch: pytest.MonkeyPatch):
    async with api() as server, shop() as where:
        entry = server.entry()
        entry["openapi"] = {"url": where.url, "refresh": "100ms"}
        async with hub_of(entry) as hub:
            events = hub.events(CatalogChanged)
            paths = {key: value for key, value in DOCUMENT["paths"].items() if key != "/act"}
            where.answer = json_response({**DOCUMENT, "paths": paths}, ETag='"two"')
            changed = await asyncio.wait_for(anext(events), 10)
            assert isinstance(changed, CatalogChanged) and set(changed.removed) == {"act", "mend"}
            where.answer = response(200, b"no document at all")
            await until(lambda: len(where.requests) > 6, 10)
            assert len(hub.known_tools()) == 5
            await hub.call_tool("api.look", {"nonce": "x"})


async def test_changed_file_changes_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(document_source, "FILE_CHECK_INTERVAL_S", 0.05)
    file = tmp_path / "api.json"
    file.write_text(json.dumps(DOCUMENT))
    async with api() as server:
        async with hub_of({"openapi": str(file), "url": server.url}) as hub:
            new = tmp_path / "new"
            new.write_text(json.dumps({**DOCUMENT, "paths": {"/look": DOCUMENT["paths"]["/look"]}}))
            os.replace(new, file)
            await until(lambda: len(hub.known_tools()) == 1, 10)
        for bad in (tmp_path / "none.json", tmp_path):
            async with Hub({"api": {"openapi": str(bad), "url": server.url}}, catalog_storage=None) as hub:
                with pytest.raises(ServerUnavailable) as caught:
                    await hub.wait_ready("api")
                assert caught.value.code == "E-OPENAPI-DOCUMENT" and caught.value.hint


@pytest.mark.attack("held-43")
async def test_document_request_carries_only_configured_headers():
    async with api() as server, shop() as where:
        entry = server.entry(headers={"X-Key": "canary"})
        entry["openapi"] = {"url": where.url, "headers": {"X-Doc": "for-the-document"}}
        async with hub_of(entry):
            assert "x-key" not in where.requests[0].headers
            assert where.requests[0].headers["x-doc"] == "for-the-document"
        entry["url"] = f"http://127.0.0.1:{where.peer.port}/api"
        async with hub_of(entry):
            assert where.requests[1].headers["x-key"] == "canary"


@pytest.mark.attack("held-44")
async def test_document_redirect_is_not_followed():
    async with shop() as elsewhere, shop() as here:
        here.answer = response(302, Location=elsewhere.url)
        entry = {"type": "openapi", "openapi": {"url": here.url, "headers": {"X-Key": "canary-of-headers"}}}
        with pytest.raises(ServerUnavailable, match="redirects to"):
            async with hub_of(entry):
                raise AssertionError("it started")
        assert here.requests and elsewhere.requests == []


async def test_excluded_operations_are_not_tools():
    async with api() as server:
        more = {"include": {"methods": ["get", "post"]}, "exclude": {"operations": ["t*"]}}
        async with hub_of(server.entry(openapi=more)) as hub:
            assert {tool.name for tool in hub.known_tools()} == {"act", "look", "find"}
        async with Hub({"api": server.entry(openapi={"include": {"tags": ["none"]}})}, catalog_storage=None) as hub:
            with pytest.raises(ServerUnavailable) as caught:
                await hub.wait_ready("api")
            assert "none of the 7 operations" in caught.value.detail


# -- calls ------------------------------------------------------------------------------------------------------------


async def test_idempotency_key_is_sent_and_retried_only_if_configured():
    async def react(turn: Turn) -> None:
        if turn.number == 0:
            turn.conn.reset()
        else:
            await turn.answer_well()

    async with api(react) as server:
        async with hub_of(server.entry(openapi={"idempotencyHeader": "Idempotency-Key"})) as hub:
            reply = await hub.call_tool("api.act", {"nonce": "n"}, idempotency_key="order-1")
            assert (reply.attempts, reply.data) == (2, {"nonce": "n"})
            assert [turn.request.headers["idempotency-key"] for turn in server.turns] == ["order-1"] * 2
            await hub.call_tool("api.act", {"nonce": "n"})
            assert "idempotency-key" not in server.turns[-1].request.headers
        server.turns.clear()
        async with hub_of(server.entry()) as hub:  # it is not configured: nothing is sent, and nothing repeated
            with pytest.raises(OutcomeUnknown):
                await hub.call_tool("api.act", {"nonce": "n"}, idempotency_key="order-2")
            assert "idempotency-key" not in server.turns[0].request.headers


@pytest.mark.promise("C13")
@pytest.mark.parametrize("checked", [True, False])
async def test_invalid_arguments_are_rejected_before_sending(checked):
    async with api() as server, hub_of({**server.entry(), "validateArguments": checked}) as hub:
        await hub.wait_ready()
        cases: list[tuple[dict[str, Any], tuple[str, str]]] = [
            ({"q": "x"}, ("$.id", "is missing")),
            ({"id": None}, ("$.id", "is missing")),
            ({"id": "1", "qq": "x"}, ("$.qq", "is unknown")),
        ]
        for arguments, problem in cases:
            with pytest.raises(InvalidArguments) as caught:
                await hub.call_tool("api.find", arguments)
            assert (caught.value.code, caught.value.executed) == ("E-ARGUMENTS", "no")
            assert [each[:2] for each in caught.value.violations] == [problem]
            assert caught.value.attempts == (0 if checked else 1)
        assert not server.turns
        await hub.call_tool("api.find", {"id": "1", "q": None})  # an optional argument that is null is not sent
        assert len(server.turns) == 1


async def test_cancelled_call_closes_its_connection():
    gone = asyncio.Event()

    async def react(turn: Turn) -> None:
        await turn.conn.gone()
        gone.set()

    async with api(react) as server, hub_of(server.entry()) as hub:
        call = asyncio.ensure_future(hub.call_tool("api.act"))
        await until(lambda: server.turns, 30)
        call.cancel()
        await asyncio.wait_for(gone.wait(), 30)
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_head_response_with_content_length_has_no_body():
    document = {**DOCUMENT, "paths": {"/x": {"head": {"operationId": "peek", "responses": {}}}}}

    async def react(turn: Turn) -> None:
        await turn.conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nETag: abc\r\n\r\n")

    async with api(react) as server, hub_of(server.entry(openapi={"document": document})) as hub:
        for _ in range(3):
            reply = await asyncio.wait_for(hub.call_tool("api.peek"), 30)
            assert reply.raw["_meta"]["toolway/http"]["headers"] == {"etag": "abc"}


async def test_missing_credentials_hint_names_the_scheme():
    document = {
        **DOCUMENT,
        "security": [{"pets_key": []}],
        "components": {"securitySchemes": {"pets_key": {"type": "apiKey", "in": "header", "name": "X-Key"}}},
    }

    async def react(turn: Turn) -> None:
        known = turn.request.headers.get("x-key") == "right"
        await turn.conn.send(turn.good if known else response(401))

    async with api(react) as server:
        async with hub_of(server.entry(openapi={"document": document})) as hub:
            assert "7 operations need the credential pets_key" in hub.status()["api"].problems[0]
            with pytest.raises(AccessDenied) as caught:
                await hub.call_tool("api.act")
            assert '"security": {"pets_key": "${keyring:NAME}"}' in caught.value.hint
        more = {"document": document, "security": {"pets_key": "right"}}
        async with hub_of(server.entry(openapi=more)) as hub:
            assert hub.status()["api"].problems == ()
            await hub.call_tool("api.act", {"nonce": "x"})


class RefreshingAuthorizer:
    """Gives the next token when the last one was refused."""

    is_interactive = False
    is_inactive = False

    def activate(self) -> None:
        """It is awake."""

    def allows(self, caller: str) -> bool:
        return True

    def __init__(self) -> None:
        self.tokens = ["old", "new"]
        self.final: list[AuthChallenge] = []

    async def authorization_header(self) -> str:
        return f"Bearer {self.tokens[0]}"

    async def on_challenge(self, challenge: AuthChallenge) -> bool:
        return len(self.tokens) > 1 and self.tokens.pop(0) == "old"

    def on_rejected(self, challenge: AuthChallenge) -> None:
        self.final.append(challenge)


async def test_rejected_token_is_refreshed_and_call_resent():
    async def react(turn: Turn) -> None:
        right = turn.request.headers["authorization"] == "Bearer new"
        await (turn.answer_well() if right else turn.conn.send(response(401)))

    def make(name: str, server: Any, spawner: Spawner, environ: Any, authorizer: Any, *more: Any) -> OpenApiTransport:
        return OpenApiTransport(server, spawner, environ, RefreshingAuthorizer())

    async with api(react) as server:
        servers = {"api": parse_entry(server.entry(auth="oauth"))}
        core = HubCore(servers, environment=HubEnvironment(create_transport=make), catalog_storage=None)
        async with Hub._from_core(core) as hub:
            await hub.wait_ready("api", timeout=20)
            reply = await hub.call_tool("api.act", {"nonce": "x"})
            assert (reply.attempts, len(server.turns)) == (1, 2)


# -- life -------------------------------------------------------------------------------------------------------------


async def test_unreachable_api_is_reported_before_first_call():
    async with api() as server:
        entry = server.entry()
    async with Hub({"api": entry}, catalog_storage=None) as hub:
        with pytest.raises(ServerUnavailable) as caught:
            await hub.wait_ready("api")
        assert caught.value.code == "E-HTTP-CONNECT"


async def test_openapi_is_not_imported_without_api_servers():
    code = (
        "import sys, asyncio\n"
        "from toolway import Hub\n"
        "async def main():\n"
        "    async with Hub({'x': 'http://127.0.0.1:9/mcp'}, catalog_storage=None): await asyncio.sleep(0.2)\n"
        "asyncio.run(main())\n"
        "print([m for m in sys.modules if 'openapi' in m and 'config' not in m or m == 'yaml'])"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    assert (await process.communicate())[0] == b"[]\n"
