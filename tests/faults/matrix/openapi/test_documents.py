"""Argument values that try to leave their parameter, and malicious OpenAPI documents."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.faults.fault_lab import Bench, lab
from tests.faults.matrix.openapi.api_server import DOCUMENT, Api, api
from tests.upstream.raw_http import Conn, Peer, Received, peer, reacting, response
from toolway import CallError, InvalidArguments, ServerUnavailable

pytestmark = pytest.mark.anyio

EVIL = (
    *("../", "..", "../../admin", "%2e%2e", "%2e%2e%2f", "..%2f", "..\\", "./", "."),
    *(
        "a/b",
        "//evil.example/",
        "http://evil.example/",
        "@evil.example",
        "?x=1",
        "#frag",
        "a?b#c",
        ";jsessionid=1",
        "a&b=c",
    ),
    *("a\r\nX-Evil: 1", "a\nb", "a\rb", "a\0b", "a\tb", "\x7f", "\x1b[2J", " ", "a b", "a+b", "%", "%zz", "%0d%0a"),
    *("ünï/çode", "日本", "\u2028", "\u202e", "\ufeff", "\U0001f600", "a" * 5000),
)
WHERE = ("id", "q", "X-Word", "c")


@pytest.mark.fault("B27")
@pytest.mark.parametrize("place", WHERE)
async def test_value_stays_in_its_parameter_or_is_rejected_unsent(place: str) -> None:
    async with api() as server, lab({"bad": server.entry(headers={"X-Ours": "canary"})}) as bench:
        sent = 0
        for value in EVIL:
            server.turns.clear()
            outcome = await bench.call("bad.find", {"id": "1", place: value})
            if outcome.error is not None:
                outcome.expect(InvalidArguments, "no")
                assert not server.turns
                continue
            sent += 1
            assert len(server.turns) == 1, value
            request = server.turns[0].request
            path, _, query = request.target.partition("?")
            begin, _, rest = path.removeprefix("/api/v1/find/").partition("/")
            assert path.startswith("/api/v1/find/") and rest == "all" and begin not in (".", ".."), request.target
            assert request.method == "GET" and request.target.isascii() and "#" not in request.target
            names = {pair.partition("=")[0] for pair in query.split("&")}
            assert names <= {"q", "nonce"}, request.target
            wanted = {"host", "accept", "user-agent", "accept-encoding", "x-ours", "x-word", "cookie"}
            assert set(request.headers) <= wanted, request.headers
            assert request.headers["x-ours"] == "canary"
            assert request.headers["host"] == f"127.0.0.1:{server.peer.port}"
            assert request.headers.get("cookie", "c=").startswith("c=") and ";" not in request.headers.get("cookie", "")
        assert sent > len(EVIL) // 2


@pytest.mark.fault("B27")
async def test_argument_never_replaces_configured_header() -> None:
    """Neither by its name nor by its value, in whatever case."""
    parameters = [
        {"name": name, "in": "header", "schema": {"type": "string"}}
        for name in ("X-KEY", "Authorization", "Host", "Content-Length", "Cookie", "Transfer-Encoding", "User-Agent")
    ]
    nonce = {"name": "nonce", "in": "query", "schema": {"type": "string"}}
    document = {**DOCUMENT, "paths": {"/x": {"get": {**DOCUMENT["paths"]["/look"]["get"]}}}}
    document["paths"]["/x"]["get"]["parameters"] = [*parameters, nonce]
    more = {"headers": {"X-Key": "ours"}, "openapi": {"document": document, "security": {"type": "http", "token": "t"}}}
    async with api() as server, lab({"bad": server.entry(**more)}) as bench:
        known = bench.hub.known_tools(server="bad")[0].input_schema["properties"]
        given = dict.fromkeys(("X-KEY", "x-key", "Authorization", "Host", "Cookie", *known), "theirs")
        outcome = await bench.call("bad.look", {key: value for key, value in given.items() if key != "nonce"})
        for turn in server.turns:
            headers = turn.request.headers
            assert (headers["x-key"], headers["authorization"]) == ("ours", "Bearer t")
            assert headers["host"] == f"127.0.0.1:{server.peer.port}"
            assert "cookie" not in headers and headers["user-agent"].startswith("toolway/")
        assert outcome.ended


# -- documents --------------------------------------------------------------------------------------------------------


PIECE = 65536


@asynccontextmanager
async def library(documents: dict[str, bytes]) -> AsyncIterator[Peer]:
    """Where documents are fetched from."""

    async def react(conn: Conn, request: Received) -> None:
        facts.requests.append(request)
        data = documents.get(request.target)
        answer = memoryview(response(404) if data is None else response(200, data, Content_Type="application/json"))
        for start in range(0, len(answer), PIECE):  # at once, 50 MB would weigh more here than in the hub
            await conn.send(answer[start : start + PIECE])

    async with peer(reacting(react)) as facts:
        yield facts


def entry_of(shop: Peer, server: Api, path: str) -> dict[str, Any]:
    found = server.entry()
    found["openapi"] = {"url": f"http://127.0.0.1:{shop.port}{path}"}
    return found


async def rejection_of(bench: Bench, entry: dict[str, Any], seconds: float = 20) -> CallError:
    """The error of a server that does not come up; the call to it was not sent."""
    await bench.add("bad", entry)
    outcome = (await bench.call("bad.act", timeout=seconds)).expect(ServerUnavailable, "no")
    assert outcome.error is not None
    await bench.hub.remove_server("bad")
    return outcome.error


def yaml_bomb() -> bytes:
    lines = ["openapi: 3.0.0", "info: {title: x, version: '1'}", "x-a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"x-a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    return "\n".join([*lines, "paths: {/x: {get: {responses: {}, x-b: *a11}}}"]).encode()


@pytest.mark.fault("B28")
async def test_hostile_document_is_rejected_in_time() -> None:
    whole = json.dumps(DOCUMENT)
    documents = {
        "/large": whole[:-1].encode() + b', "x-long": "' + b"a" * 50_000_000 + b'"}',
        "/bomb": yaml_bomb(),
        "/deep": b'{"openapi": "3.0.0", "paths": ' + b'{"a": ' * 20_000 + b"1" + b"}" * 20_001,
        "/deep-yaml": b"openapi: 3.0.0\npaths: " + b"[" * 20_000 + b"]" * 20_000,
        "/merge": b"a: &a {b: 1}\n" + b"c: {<<: *a}\n" * 3,
        "/none": b"<html>log in</html>",
        "/python": b"!!python/object/apply:os.system ['touch /tmp/toolway-was-here']",
        "/empty": b"",
        "/number": b"7",
        "/other": b'{"openapi": "9.9.9", "paths": {}}',
        "/paths": b'{"openapi": "3.0.0", "info": {"title": "x", "version": "1"}, "paths": {}}',
    }
    async with library(documents) as shop, api() as server, lab({}, memory=160, calm=False) as bench:
        for path in documents:
            error = await rejection_of(bench, entry_of(shop, server, path))
            assert error.code == "E-OPENAPI-DOCUMENT", (path, error)
            assert error.hint and len(str(error)) < 2000
        missing = await rejection_of(bench, entry_of(shop, server, "/missing"))
        assert "404" in str(missing)
        assert not server.turns


@pytest.mark.fault("B28")
async def test_external_refs_are_ignored_and_circular_refs_work() -> None:
    async def never(conn: Any) -> None:
        raise AssertionError("another document was fetched")

    circle = {"type": "object", "properties": {"next": {"$ref": "#/components/schemas/circle"}}}
    async with peer(never) as other, api() as server:
        for far in (f"{other.url}/x.json", "file:///etc/passwd", "other.json#/x", f"//127.0.0.1:{other.port}/"):
            body = {"content": {"application/json": {"schema": {"$ref": far}}}}
            near = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/circle"}}}}
            document = {
                **DOCUMENT,
                "paths": {
                    **DOCUMENT["paths"],
                    "/far": {"post": {"operationId": "far", "requestBody": body, "responses": {}}},
                    "/parameter": {"get": {"operationId": "p", "parameters": [{"$ref": far}], "responses": {}}},
                    "/item": {"$ref": far},
                    "/near": {"post": {"operationId": "near", "requestBody": near, "responses": {}}},
                },
                "components": {"schemas": {"circle": circle}},
            }
            async with lab({"bad": server.entry(openapi={"document": document})}) as bench:
                server.effects = str(bench.effects)
                (await bench.call("bad.act", {"effect": True})).expect(None)
                names = {tool.name for tool in bench.hub.known_tools(server="bad")}
                assert "near" in names and "p" not in names
                told = " ".join(bench.hub.status()["bad"].problems)
                assert "/parameter" in told and "/item" in told
        assert other.connections == 0


@pytest.mark.fault("B28")
async def test_large_document_delays_no_other_call() -> None:
    paths = {f"/p{n}": {"get": DOCUMENT["paths"]["/look"]["get"] | {"operationId": f"p{n}"}} for n in range(900)}
    document = {**DOCUMENT, "paths": {**DOCUMENT["paths"], **paths}}
    documents = {"/doc": json.dumps(document, indent=4).encode()}
    async with library(documents) as shop, api() as server, lab({}, memory=160) as bench:
        server.effects = str(bench.effects)
        await bench.add("bad", entry_of(shop, server, "/doc"))
        (await bench.call("bad.act", {"effect": True}, timeout=20)).expect(None)
        assert len(bench.hub.known_tools(server="bad")) == 907


@pytest.mark.fault("B20", "B28")
async def test_document_redirect_to_other_origin_is_not_followed() -> None:
    async def never(conn: Any) -> None:
        raise AssertionError("the other origin was connected to")

    async with peer(never) as other, api() as server:

        async def moved(conn: Conn, request: Received) -> None:
            await conn.send(response(302, Location=other.url))

        async with peer(reacting(moved)) as shop, lab({}) as bench:
            error = await rejection_of(bench, entry_of(shop, server, "/doc"))
            assert "redirects to" in str(error)
        assert other.connections == 0


@pytest.mark.fault("B20")
async def test_credentials_are_not_sent_to_documents_other_origin() -> None:
    async def never(conn: Any) -> None:
        raise AssertionError("the credential was sent to where the document points")

    async with peer(never) as other, api() as server:
        document = {**DOCUMENT, "servers": [{"url": f"http://127.0.0.1:{other.port}/v1"}]}
        async with library({"/doc": json.dumps(document).encode()}) as shop, lab({}) as bench:
            entry = entry_of(shop, server, "/doc")
            del entry["url"]
            entry["openapi"]["security"] = {"type": "http", "token": "canary-token"}
            error = await rejection_of(bench, entry)
            assert error.code == "E-OPENAPI-SERVER" and '"url":' in error.hint
        assert other.connections == 0


@pytest.mark.fault("B1")
async def test_unresolvable_document_or_api_host_fails_in_time() -> None:
    async with api() as server, lab({}) as bench:
        there = {**server.entry(), "url": "http://nowhere.invalid/api"}
        fetched = {"type": "openapi", "url": server.url, "openapi": {"url": "http://nowhere.invalid/openapi.json"}}
        for entry in (there, fetched):
            error = await asyncio.wait_for(rejection_of(bench, entry), 10)
            assert error.code == "E-HTTP-DNS"
