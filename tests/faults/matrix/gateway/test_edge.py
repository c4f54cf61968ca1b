"""Requests that must stop at the edge of the gateway."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.edge_lab import (
    META,
    MODERN,
    OPEN,
    ROUTES,
    TOKEN,
    Edge,
    Json,
    edge,
    handshake,
    message_of,
    modern,
)
from tests.gateway.full_server import TASKS_KEY, FullHttp
from tests.http.raw_client import until
from toolway.gateway.sealing import Sealer
from toolway.testing import FakeHttp

pytestmark = [pytest.mark.anyio, pytest.mark.dear]

CALL: Json = {"name": "a__echo", "arguments": {"text": "x"}}
ASKS: Json = {"elicitation": {"form": {}}}


def _nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def _spoiled() -> dict[str, tuple[bytes, dict[str, str], set[int]]]:
    """Bodies and headers that contradict themselves or each other, and what they may be answered with."""
    body, fields = modern("tools/call", CALL)
    text = json.dumps(body).encode()

    def changed(**more: Any) -> bytes:
        return json.dumps({**body, **more}).encode()

    def params(**more: Any) -> bytes:
        return changed(params={**body["params"], **more})

    old = {**body["params"]["_meta"], f"{META}protocolVersion": "2025-11-25"}
    return {
        "too large": (b" " * (4 * 1024 * 1024) + text, fields, {413}),
        "too deep": (text.replace(b'"x"', _nested(200)), fields, {400}),
        "far too deep": (_nested(100_000), fields, {400}),
        "a key twice": (text[:-1] + b',"method":"tools/list"}', fields, {400}),
        "a key of the parameters twice": (text.replace(b'"name"', b'"name":"b__echo","name"', 1), fields, {400}),
        "a byte order mark": (b"\xef\xbb\xbf" + text, fields, {400}),
        "UTF-16": (text.decode().encode("utf-16"), fields, {400}),
        "not UTF-8": (text.replace(b'"x"', b'"\xff"'), fields, {400}),
        "a lone surrogate": (text.replace(b'"x"', b'"\\ud800"'), fields, {400}),
        "NaN": (text.replace(b'"x"', b"NaN"), fields, {400}),
        "a batch": (b"[" + text + b"," + text + b"]", fields, {400}),
        "an empty batch": (b"[]", fields, {400}),
        "nothing": (b"", fields, {400}),
        "two documents": (text + text, fields, {400}),
        "something behind": (text + b"x", fields, {400}),
        "keys in other letters": (text.replace(b'"method"', b'"Method"'), fields, {400}),
        "an id that is none": (changed(id={}), fields, {400}),
        "an id without end": (changed(id="x" * 1000), fields, {400}),
        "parameters that are none": (changed(params=[1]), fields, {400}),
        "another method than the header": (text, fields | {"Mcp-Method": "tools/list"}, {400}),
        "another name than the header": (text, fields | {"Mcp-Name": "b__echo"}, {400}),
        "another name than the header, encoded": (text, fields | {"Mcp-Name": "=?base64?Yl9fZWNobw==?="}, {400}),
        "no method in the headers": (text, {k: v for k, v in fields.items() if k != "Mcp-Method"}, {400}),
        "no name in the headers": (text, {k: v for k, v in fields.items() if k != "Mcp-Name"}, {400}),
        "another version than the header": (params(_meta=old), fields, {400}),
        "a version that there is not": (text, fields | {"Mcp-Protocol-Version": "2099-01-01"}, {400}),
        "no capabilities": (params(_meta={f"{META}protocolVersion": MODERN}), fields, {400}),
        "another type": (text, fields | {"Content-Type": "text/plain"}, {415}),
        "an answer that cannot be read": (text, fields | {"Accept": "text/html"}, {406}),
    }


SPOILED = _spoiled()


@pytest.mark.fault("C5")
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_untrusted_request_is_rejected_before_any_server(tmp_path: Path, era: str, dice: random.Random) -> None:
    async with edge(tmp_path, servers={"a": FakeHttp(name="a", era=era), "b": FakeHttp(name="b")}) as found:
        assert "result" in await found.call("a__echo", {"text": "x"})
        before = found.contacts()
        for case in dice.sample(list(SPOILED), len(SPOILED)):
            body, fields, statuses = SPOILED[case]
            answer = await found.ask("POST", dice.choice(("/mcp", "/mcp/both")), body, fields)
            assert answer.status in statuses, (case, answer)
        assert found.contacts() == before
        assert "result" in await found.call("a__echo", {"text": "x"})


@pytest.mark.fault("C5")
async def test_untrusted_request_in_a_session_reaches_no_server(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        session = {"Mcp-Session-Id": await found.initialize(), "Mcp-Protocol-Version": "2025-11-25"}
        text = json.dumps(handshake("tools/call", CALL)).encode()
        before = found.contacts()
        for body in (
            b"\xef\xbb\xbf" + text,
            b"[" + text + b"]",
            text[:-1] + b',"method":"ping"}',
            text.replace(b'"x"', _nested(200)),
            b" " * (4 * 1024 * 1024) + text,
        ):
            assert (await found.ask("POST", "/mcp", body, session)).status in (400, 413)
        for fields in (
            session | {"Mcp-Protocol-Version": "1999-01-01"},
            {**session, "Mcp-Session-Id": session["Mcp-Session-Id"] + "x"},
            {"Mcp-Protocol-Version": "2025-11-25"},
        ):
            assert (await found.ask("POST", "/mcp", text, fields)).status in (400, 404)
        assert found.contacts() == before
        assert "result" in message_of(await found.ask("POST", "/mcp", text, session))


@pytest.mark.fault("C6")
async def test_foreign_host_or_origin_is_rejected_on_every_route(tmp_path: Path, dice: random.Random) -> None:
    async with edge(tmp_path) as found:
        before, port = found.contacts(), found.port
        cases = [
            ({"Host": "evil.example"}, 421),
            ({"Host": f"rebound.evil.example:{port}", "Origin": f"http://rebound.evil.example:{port}"}, 421),
            ({"Host": f"127.0.0.1.evil.example:{port}"}, 421),
            ({"Origin": "https://evil.example"}, 403),
            ({"Origin": f"http://evil.example:{port}"}, 403),
            ({"Origin": f"http://127.0.0.1:{port + 1}"}, 403),
            ({"Origin": "null"}, 403),
        ]
        routes = [*ROUTES, *OPEN, ("OPTIONS", "/mcp"), ("OPTIONS", "/admin/servers"), ("GET", "/mcp/both")]
        for method, path in dice.sample(routes, len(routes)):
            for fields, status in cases:
                more = fields | ({"Connection": "Upgrade", "Upgrade": "websocket"} if dice.random() < 0.3 else {})
                answer = await found.ask(method, path, b"", more)
                assert answer.status == status, (method, path, more)
        assert found.contacts() == before
        assert set(found.hub.servers.entries) == {"a", "b"}


def _jwt(algorithm: str, **claims: Any) -> str:
    """A well-formed token whose signature matches no key."""
    parts = [json.dumps(part).encode() for part in ({"alg": algorithm, "typ": "JWT"}, claims)]
    signature = b"" if algorithm == "none" else b"s" * 32
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in (*parts, signature))


@pytest.mark.fault("C7")
async def test_invalid_token_gets_401_on_every_route(tmp_path: Path, dice: random.Random) -> None:
    async with edge(tmp_path) as found:
        own = found.key()
        [key] = found.keyring.list_keys()
        assert await found.tools(token=own)
        found.keyring.revoke_key_sync(key.id)
        tokens = {
            "revoked": own,
            "for someone else": _jwt("HS256", aud="https://other.example", sub="local", exp=4e9),
            "expired": _jwt("HS256", aud=f"http://127.0.0.1:{found.port}/mcp", sub="local", exp=1),
            "unsigned": _jwt("none", aud=f"http://127.0.0.1:{found.port}/mcp", sub="local", exp=4e9),
            "of another issuer": _jwt("RS256", iss="https://evil.example", sub="local", exp=4e9),
            "the hash of a key": key.hash,
            "the id of a key": key.id,
            "cut": TOKEN[:-1],
            "longer": TOKEN + "x",
            "in other letters": TOKEN.swapcase(),
            "malformed": "\x80\xff..",
            "empty": "",
            "without end": "x" * 20_000,
        }
        before = found.contacts()
        body, fields = modern("tools/call", CALL)
        for case in dice.sample(list(tokens), len(tokens)):
            for method, path in ROUTES:
                answer = await found.ask(method, path, body, fields, token=tokens[case])
                assert answer.status == 401, (case, method, path)
        assert found.contacts() == before


@pytest.mark.fault("C8")
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_request_state_is_bound_to_its_caller_and_call(tmp_path: Path, era: str) -> None:
    fakes = {"a": FakeHttp(name="a", era=era), "b": FakeHttp(name="b", era=era)}
    async with edge(tmp_path, servers=fakes) as found:
        mine, other = found.key(), found.key()
        asked: Json = {"name": "a__elicit", "arguments": {}}
        first = (await found.modern("tools/call", asked, token=mine, capabilities=ASKS))["result"]
        assert first["resultType"] == "input_required"
        [key] = first["inputRequests"]
        answers = {key: {"action": "accept", "content": {"name": "Ada"}}}
        again = {**asked, "inputResponses": answers, "requestState": first["requestState"]}
        before = found.contacts()
        for token, params, path in (
            (other, again, "/mcp"),
            (TOKEN, again, "/mcp"),
            (mine, again, "/mcp/both"),
            (mine, {**again, "name": "b__elicit"}, "/mcp"),
            (mine, {**again, "arguments": {"rounds": 2}}, "/mcp"),
            (mine, {**again, "requestState": again["requestState"][:-4] + "AAAA"}, "/mcp"),
            (
                mine,
                {**again, "requestState": Sealer(b"x" * 32, lambda: 0.0).seal("state", ["parked", "1", []], 1)},
                "/mcp",
            ),
            (mine, {**again, "requestState": "guess"}, "/mcp"),
        ):
            answer = await found.modern("tools/call", params, token=token, path=path, capabilities=ASKS)
            assert "requestState" in answer["error"]["message"], (params, path)
        assert found.contacts() == before
        done = await found.modern("tools/call", again, token=mine, capabilities=ASKS)
        assert "Ada" in json.dumps(done["result"]["content"])


@pytest.mark.fault("C8")
async def test_task_exists_only_for_its_caller(tmp_path: Path) -> None:
    can: Json = {"extensions": {TASKS_KEY: {}}}
    async with edge(tmp_path, servers={"a": FullHttp("modern")}) as found:
        mine, other = found.key(), found.key()
        begun = await found.call("a__start_task", token=mine, capabilities=can)
        task = begun["result"]["taskId"]
        assert "task-1" not in task
        before = found.contacts()
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            for token, id_, path in (
                (other, task, "/mcp"),
                (TOKEN, task, "/mcp"),
                (mine, task, "/mcp/both"),
                (mine, "task-1", "/mcp"),
                (mine, task[:-2] + "AA", "/mcp"),
            ):
                answer = await found.modern(method, {"taskId": id_}, token=token, path=path, capabilities=can)
                assert answer["error"]["message"] == "Unknown task"
        assert found.contacts() == before
        answer = await found.modern("tasks/get", {"taskId": task}, token=mine, capabilities=can)
        assert answer["result"]["taskId"] == task


@pytest.mark.fault("C8")
async def test_session_exists_only_for_its_caller_and_endpoint(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        mine, other = found.key(), found.key()
        session = await found.initialize(token=mine)
        before = found.contacts()
        body = handshake("tools/call", CALL)
        for token, id_, path in (
            (other, session, "/mcp"),
            (TOKEN, session, "/mcp"),
            (mine, session, "/mcp/both"),
            (mine, session, "/mcp/server/a"),
            (mine, session[:-2] + "AA", "/mcp"),
            (mine, "1", "/mcp"),
        ):
            for method in ("POST", "GET", "DELETE"):
                answer = await found.ask(method, path, body, {"Mcp-Session-Id": id_}, token=token)
                assert answer.status == 404, (method, path)
        assert found.contacts() == before
        assert "result" in message_of(await found.ask("POST", "/mcp", body, {"Mcp-Session-Id": session}, token=mine))


@pytest.mark.fault("C8")
async def test_sse_stream_accepts_messages_only_from_its_caller(tmp_path: Path) -> None:
    async with edge(tmp_path) as found, found.connected() as stream:
        mine, other = found.key(), found.key()
        await stream.send(found.request("GET", "/sse", token=mine))
        assert (await stream.head()).status == 200
        chunks = stream.chunks()
        place = (await anext(chunks)).decode().split("data: ")[1].strip()
        before = found.contacts()
        for token, path in ((other, place), (TOKEN, place), (mine, place[:-2] + "AA"), (mine, "/messages")):
            assert (await found.ask("POST", path, handshake("tools/call", CALL), token=token)).status == 404
        assert found.contacts() == before
        assert (await found.ask("POST", place, handshake("ping"), token=mine)).status == 202
        assert b'"result":{}' in await anext(chunks)


@pytest.mark.fault("C10")
async def test_duplicate_id_in_session_is_rejected_and_first_runs_on(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        session = {"Mcp-Session-Id": await found.initialize()}
        slow = handshake("tools/call", {"name": "a__sleep", "arguments": {"seconds": 0.7}}, id=7)
        first = asyncio.create_task(found.ask("POST", "/mcp", slow, session))
        await until(lambda: found.calls("a") == 1)
        before = found.contacts()
        second = await _echo(found, session, 7)
        assert second["error"]["code"] == -32600 and second["id"] == 7
        assert found.contacts() == before
        assert "result" in await _echo(found, session, "7")  # which is another
        other = {"Mcp-Session-Id": await found.initialize()}
        assert "result" in await _echo(found, other, 7)  # and so is the same id in another session
        assert not first.done()
        assert "result" in message_of(await first)
        assert "result" in await _echo(found, session, 7)  # free again


async def _echo(found: Edge, session: dict[str, str], id_: int | str) -> Json:
    return message_of(await found.ask("POST", "/mcp", handshake("tools/call", CALL, id=id_), session))


@pytest.mark.fault("C10")
async def test_duplicate_id_over_sse_is_rejected(tmp_path: Path) -> None:
    async with edge(tmp_path) as found, found.connected() as stream:
        await stream.send(found.request("GET", "/sse"))
        await stream.head()
        chunks = stream.chunks()
        place = (await anext(chunks)).decode().split("data: ")[1].strip()
        slow = handshake("tools/call", {"name": "a__sleep", "arguments": {"seconds": 0.5}}, id=7)
        for body in (slow, handshake("tools/call", CALL, id=7)):
            assert (await found.ask("POST", place, body)).status == 202
        came = [json.loads((await anext(chunks)).split(b"data: ")[1]) for _ in range(2)]
        assert [("error" in message, message["id"]) for message in came] == [(True, 7), (False, 7)]
        assert found.calls("a") == 1


@pytest.mark.fault("C10")
async def test_modern_requests_with_the_same_id_are_independent(tmp_path: Path) -> None:
    """Every request stands for itself: the answer comes on its own connection, whatever its id."""
    async with edge(tmp_path) as found:
        answers = await asyncio.gather(*(found.call("a__echo", {"text": str(n)}, id=7) for n in range(50)))
        assert [answer["result"]["structuredContent"]["text"] for answer in answers] == [str(n) for n in range(50)]
