"""Envelopes: what is accepted, what is refused, and what a refusal still tells."""

from __future__ import annotations

import json
import random

import pytest

from toolway.protocol import jsonrpc
from toolway.types import Certainty


def answer(result: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":7,"result":' + result + b"}"


def test_result_keeps_unknown_fields() -> None:
    message = jsonrpc.parse_message(
        answer(b'{"content":[{"type":"video","fps":25}],"future":{"a":null,"n":123456789012345678}}')
    )
    assert message.kind == "result"
    assert message.id == 7
    assert message.body == {"content": [{"type": "video", "fps": 25}], "future": {"a": None, "n": 123456789012345678}}


@pytest.mark.parametrize(
    ("why", "frame"),
    [
        ("a byte that is not UTF-8", answer(b'{"a":"\xe9"}')),
        ("a byte order mark", b"\xef\xbb\xbf" + answer(b"{}")),
        ("a NUL in a string", answer(b'{"a":"\x00"}')),
        ("a duplicate key", answer(b'{"a":1,"a":2}')),
        ("NaN", answer(b'{"a":NaN}')),
        ("infinity", answer(b'{"a":-Infinity}')),
        ("a number too large for a double", answer(b'{"a":1e400}')),
        ("an integer of 401 digits", answer(b'{"a":1' + b"0" * 400 + b"}")),
        ("a lone surrogate", answer(b'{"a":"\\ud800"}')),
        ("1,000 levels", answer(b'{"a":' + b"[" * 1000 + b"]" * 1000 + b"}")),
        ("65 levels", answer(b'{"a":' + b"[" * 65 + b"]" * 65 + b"}")),
        ("an object of 10,001 keys", answer(b"{" + b",".join(b'"k%d":0' % n for n in range(10_001)) + b"}")),
        ("an array of 100,001 items", answer(b'{"a":[' + b"0," * 100_000 + b"0]}")),
        ("text after the message", answer(b"{}") + b" x"),
        ("a result that is not an object", answer(b"[1]")),
        ("result and error together", b'{"id":7,"result":{},"error":{"code":1,"message":"x"}}'),
        ("a truncated message", answer(b'{"a":')[:-1]),
    ],
)
def test_invalid_response_is_rejected_but_its_id_is_found(why: str, frame: bytes) -> None:
    with pytest.raises(jsonrpc.InvalidMessage) as caught:
        jsonrpc.parse_message(frame)
    assert caught.value.id == 7, why


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"hello",
        b"[]",
        b"17",
        b'{"id":1}',
        b'{"method":"x","params":[1]}',
        b'{"id":true,"result":{}}',
        b'{"id":1.5,"result":{}}',
    ],
)
def test_invalid_envelope_is_rejected(frame: bytes) -> None:
    with pytest.raises(jsonrpc.InvalidMessage):
        jsonrpc.parse_message(frame)


def test_64_levels_and_large_valid_messages_pass() -> None:
    jsonrpc.parse_message(answer(b'{"a":' + b"[" * 62 + b"]" * 62 + b"}"))
    jsonrpc.parse_message(answer(b'{"a":[' + b"[1,2]," * 30_000 + b"0]}"))


def test_exponent_in_a_string_is_not_a_number() -> None:
    assert jsonrpc.parse_message(answer(b'{"a":"1e400"}')).body == {"a": "1e400"}


def test_field_names_are_case_sensitive() -> None:
    with pytest.raises(jsonrpc.InvalidMessage):
        jsonrpc.parse_message(b'{"Method":"x","Id":1}')


def test_request_without_params_has_empty_params() -> None:
    message = jsonrpc.parse_message(b'{"jsonrpc":"2.0","id":"a","method":"ping"}')
    assert (message.kind, message.id, message.method, message.body) == ("request", "a", "ping", {})


def test_id_is_extracted_only_from_responses() -> None:
    assert jsonrpc.extract_id(b'{"id":5,"method":"x"') is None
    assert jsonrpc.extract_id(b'{"id":"abc","result":{"id":9') == "abc"


@pytest.mark.parametrize(
    ("code", "certainty"),
    [
        (-32601, Certainty.REJECTED),
        (-32602, Certainty.REJECTED),
        (-32022, Certainty.REJECTED),
        (-32603, Certainty.UNKNOWN),
        (-32000, Certainty.UNKNOWN),
        (42, Certainty.EXECUTED),
    ],
)
def test_error_code_sets_certainty(code: int, certainty: Certainty) -> None:
    assert jsonrpc.classify_error(code) is certainty


def test_error_of_any_shape_gets_code_message_and_data() -> None:
    assert jsonrpc.parse_error({}) == (-32603, "error without a message", None)
    assert jsonrpc.parse_error({"code": True, "message": "a\x1b[31mb\u202e", "data": 1}) == (-32603, "a[31mb", 1)


# -- servers without a handshake ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [[1, {"a": 2}], 7, 1.5, "text", True, None])
def test_bare_server_may_return_any_result_type(value) -> None:
    frame = json.dumps({"jsonrpc": "2.0", "id": 3, "result": value}).encode()
    with pytest.raises(jsonrpc.InvalidMessage):
        jsonrpc.parse_message(frame)
    message = jsonrpc.parse_bare_response(frame)
    assert message is not None and (message.kind, message.id) == ("result", 3)
    assert json.loads(message.body["content"][0]["text"]) == value
    assert "structuredContent" not in message.body


def test_bare_response_may_have_null_result_or_error() -> None:
    result = jsonrpc.parse_bare_response(b'{"id":1,"result":{"a":1},"error":null}')
    error = jsonrpc.parse_bare_response(b'{"id":1,"result":null,"error":{"code":-32603,"message":"no"}}')
    assert result is not None and (result.kind, result.body) == ("result", {"a": 1})
    assert error is not None and (error.kind, error.body["code"]) == ("error", -32603)


@pytest.mark.parametrize(
    "frame",
    [
        b"Starting...",
        b"[1]",
        b"7",
        b'{"id":1}',
        b'{"result":1}',
        b'{"id":null,"result":1}',
        b'{"id":[1],"result":1}',
        b'{"id":1,"result":1,"error":{"code":1}}',
        b'{"id":1,"result":1,"error":"no"}',
        b'{"id":1,"method":"x","result":1}',
        b'{"id":1,"result":1,"result":2}',
        b'{"id":1,"result":NaN}',
        b'{"id":1,"result":' + b"[" * 1000 + b"]" * 1000 + b"}",
    ],
)
def test_bare_parser_ignores_non_responses(frame) -> None:
    assert jsonrpc.parse_bare_response(frame) is None


def test_fast_decoder_accepts_only_valid_json() -> None:
    rng = random.Random(3)
    texts = [
        b'{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"a\\nb"}],"isError":false}}',
        '{"a":[1,-2.5,1e22,null,true,{"b":{}}],"ü":"€","c":"\\"x\\""}'.encode(),
        b"[0,10,3.25,100000000000000000000,[],{}]",
    ]
    equal = 0
    for _ in range(20_000):
        data = bytearray(rng.choice(texts))
        for _ in range(rng.randint(0, 3)):
            at = rng.randrange(len(data))
            if rng.random() < 0.5:
                data[at] = rng.choice(b'{}[]",:0123456789eE.+-\\ux \x00\xc3')
            else:
                data[at:at] = data[max(0, at - rng.randint(1, 9)) : at]
        fast = jsonrpc.decode_canonical(bytes(data))
        if fast is not None:
            assert repr(fast) == repr(jsonrpc._decode_strictly(bytes(data))), bytes(data)
            equal += 1
    assert equal > 4000


@pytest.mark.parametrize("digits", [299, 300, 301, 308, 309, 310, 400, 4000])
@pytest.mark.parametrize("offset", range(0, 160, 13))
def test_integer_beyond_a_double_is_rejected_anywhere(digits: int, offset: int) -> None:
    text = b'["%b",%b]' % (b"x" * offset, b"9" * digits)
    if digits < 309:
        assert jsonrpc.decode_json(text)[1] == int(b"9" * digits)
    else:
        with pytest.raises(ValueError, match="double"):
            jsonrpc.decode_json(text)


def test_usual_result_parser_agrees_with_full_parser() -> None:
    rng = random.Random(5)
    original = answer(b'{"content":[{"type":"text","text":"a"}],"n":[1,-2.5,null],"resultType":"complete"}')
    usual = 0
    for _ in range(5_000):
        data = bytearray(original)
        for _ in range(rng.randint(0, 2)):
            at = rng.randrange(len(data))
            step = rng.random()
            if step < 0.4:
                data[at] = rng.choice(b'{}[]",:0123456789eE+- \xc3')
            elif step < 0.7:
                del data[at : at + rng.randint(1, 4)]
            else:
                data[at:at] = data[at - rng.randint(0, 12) : at]
        frame = bytes(data)
        found = jsonrpc.parse_usual_result(frame, 7)
        if found is not None:
            usual += 1
            result, received = found
            assert jsonrpc.parse_result(frame, 7) == (result, True), frame
            assert answer(received) == frame
    assert 1_000 < usual < 4_900
    levels = b'{"a":' + b"[" * 62 + b"]" * 62 + b"}"
    assert jsonrpc.parse_usual_result(answer(levels), 7) is not None
    assert jsonrpc.parse_usual_result(answer(levels.replace(b"[]", b"[[]]")), 7) is None
    assert jsonrpc.parse_usual_result(answer(b"{}"), 8) is None
    assert jsonrpc.parse_usual_result(answer(b"[{}]"), 7) is None
