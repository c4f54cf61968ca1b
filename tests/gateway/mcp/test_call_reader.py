"""A usual call is read in parts; the result is always that of reading the whole body strictly."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest

from toolway.gateway.mcp.call_reader import CallReader, ListReader
from toolway.gateway.mcp.modern import RoutingHeaders
from toolway.protocol import jsonrpc

VERSION = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
}
COMPACT = (",", ":")


def reader() -> CallReader:
    return CallReader(RoutingHeaders(VERSION, "tools/call", "one__echo", {}, None))


def body(arguments: Any, *, id: Any = 7, meta: Any = META, **more: Any) -> dict[str, Any]:
    params = {"name": "one__echo", "arguments": arguments, "_meta": meta}
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params, **more}


def encode(value: Any, separators: tuple[str, str] = COMPACT) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=separators).encode()


def test_call_is_read_in_parts_and_reuses_the_last_meta() -> None:
    found = reader()
    first, second = found.read(encode(body({"a": 1}))), found.read(encode(body({"a": 2}, id=8)))
    assert first is not None
    assert second is not None
    assert (first.id, first.arguments, second.id, second.arguments) == (b"7", {"a": 1}, b"8", {"a": 2})
    assert second.meta is first.meta
    assert first.meta.capabilities == {}
    assert first.meta.extra is None


def test_different_meta_is_read_again() -> None:
    found = reader()
    assert found.read(encode(body({}))) is not None
    extra = found.read(encode(body({}, meta={**META, "com.example/x": 1})))
    assert extra is not None
    assert extra.meta.extra == {"com.example/x": 1}
    assert found.read(encode(body({}, meta={**META, "progressToken": 1}))) is None
    assert found.read(encode(body({}, meta={**META, "io.modelcontextprotocol/protocolVersion": "x"}))) is None


DEEP: list[Any] = []
for _ in range(61):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("why", "data"),
    [
        ("a duplicate id", encode(body({})).replace(b'"id":7', b'"id":6,"id":7')),
        ("duplicate arguments", encode(body({})).replace(b'"arguments":{}', b'"arguments":{"a":1},"arguments":{}')),
        ("a duplicate argument", encode(body({"a": 1})).replace(b'"a":1', b'"a":1,"a":1')),
        ("a duplicate key in the meta", encode(body({})).replace(b'"name":"test"', b'"name":"x","name":"test"')),
        ("another name", encode(body({})).replace(b"one__echo", b"one__other")),
        ("bytes that are not UTF-8", encode(body({"a": "x"})).replace(b'"x"', b'"\xff"')),
        ("64 levels of arguments", encode(body({"a": [DEEP]}))),
        ("an integer beyond a double", encode(body({"a": 10**400}))),
        ("a number beyond a double", encode(body({"a": 1})).replace(b'"a":1', b'"a":1e999')),
        ("an id that is not a safe integer", encode(body({}, id=2**60))),
        ("an id with a leading zero", encode(body({})).replace(b'"id":7', b'"id":07')),
        ("arguments that are not an object", encode(body([]))),
        ("no arguments", encode(body({})).replace(b'"arguments":{},', b"")),
        ("no JSON", b"{"),
    ],
)
def test_unusual_call_is_left_to_the_router(why: str, data: bytes) -> None:
    found = reader()
    assert found.read(data) is None, why
    assert found.read(encode(body({}))) is not None
    assert found.read(data) is None, why


def test_differently_encoded_call_is_read_the_same() -> None:
    found = reader()
    for arguments in ({}, {"a": "é\n\\", "b": [1, 2.5, None, {"c": True}]}, {"a": DEEP[0][0][0]}, {"a": 10**300}):
        for id in (0, 7, -3, "seven", "sié\\"):
            value = body(arguments, id=id)
            turned = {key: value[key] for key in reversed(value)}
            spaced = encode(value, (", ", ": "))
            escaped = json.dumps(value).encode()
            for data in (encode(value), spaced, escaped, encode(turned), encode({**value, "more": 1})):
                call = found.read(data)
                assert call is not None, data
                assert (json.loads(call.id), call.arguments, call.meta.value) == (id, arguments, META)


def test_reading_in_parts_is_as_strict_as_reading_the_whole() -> None:
    rng = random.Random(17)
    original = encode(body({"text": "a b", "n": [1, -2.5e10, {"k": None}], "k": "\u00e9"}, id=12))
    accepted = 0
    for _ in range(20_000):
        data = bytearray(original)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(data))
            step = rng.random()
            if step < 0.4:
                data[at] = rng.choice(b'{}[]",:0123456789eE+-\\nx \xc3')
            elif step < 0.7:
                del data[at : at + rng.randint(1, 4)]
            else:
                data[at:at] = data[at - rng.randint(0, 12) : at]
        found = reader()
        found.read(original)  # so the meta is known
        whole, parts = found._read_whole(bytes(data)), found.read(bytes(data))
        if parts is not None:
            accepted += 1
            if parts.encoded_arguments:  # these bytes are sent to the server
                assert parts.encoded_arguments == jsonrpc.encode_json(parts.arguments)
                assert parts.encoded_arguments in data
            parts = msgspec.structs.replace(parts, encoded_arguments=b"")
        assert whole == parts, bytes(data)
    assert 100 < accepted < 19_000


def test_list_request_is_recognized_by_all_but_its_id() -> None:
    rng = random.Random(3)
    routing = RoutingHeaders(VERSION, "tools/list", None, {}, None)
    request = {"jsonrpc": "2.0", "id": 12, "method": "tools/list", "params": {"_meta": META}}
    original = encode(request)
    found = ListReader(routing)
    assert found.read(original) == b"12"
    assert found.read(encode({**request, "id": "a"})) == b'"a"'
    assert found.read(encode(request, (", ", ": "))) == b"12"
    for other in (
        {**request, "params": {"_meta": META, "cursor": "x"}},
        {**request, "params": {}},
        {**request, "method": "tools/call"},
        {**request, "id": None},
        {**request, "id": 1.5},
        {**request, "more": 1},
        {**request, "params": {"_meta": {**META, "io.modelcontextprotocol/clientCapabilities": []}}},
    ):
        assert found.read(encode(other)) is None, other
    for _ in range(3_000):
        data = bytearray(original)
        at = rng.randrange(len(data))
        if rng.random() < 0.5:
            data[at] = rng.choice(b'{}[]",:0123456789eE+-x ')
        else:
            data[at:at] = data[at - rng.randint(0, 12) : at]
        assert found.read(bytes(data)) == ListReader(routing).read(bytes(data)), bytes(data)
