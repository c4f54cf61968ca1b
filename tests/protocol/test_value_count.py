from __future__ import annotations

import json
import time
from itertools import pairwise
from typing import Any

import pytest

from tests.timing import within
from toolway.protocol import jsonrpc, large_messages

MEGABYTES = 8 * 1024 * 1024


def pause() -> None:
    """No one else is there."""


def answer(result: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":7,"result":' + result + b"}"


def many(item: bytes, size: int = MEGABYTES) -> bytes:
    array = b"[" + b",".join([item] * 90_000) + b"]"
    return answer(b'{"a":[' + b",".join([array] * (size // len(array))) + b"]}")


@pytest.mark.parametrize(
    ("value", "values", "keys"),
    [
        (1, 1, 0),
        ([1, 2, 3], 4, 0),
        ({"a": 1, "b": [2]}, 4, 2),
        ("a,b:[{", 1, 0),
        (['"', ",", "\\", '\\",:'], 5, 0),
        ([[], {}], 5, 0),
    ],
)
def test_values_and_keys_are_counted_outside_strings(value: Any, values: int, keys: int) -> None:
    assert large_messages.count_values(json.dumps(value).encode(), 100, pause) == (values, keys)


@pytest.mark.parametrize("shift", range(8))
def test_slice_boundaries_do_not_matter(shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps(["x" * shift, '\\\\"', ",\\", '"', "[", {"k,": [1, 2]}]).encode()
    whole = large_messages.count_values(text, 100, pause)
    monkeypatch.setattr(large_messages, "SLICE_BYTES", 8)
    assert large_messages.count_values(text, 100, pause) == whole == (10, 1)


@pytest.mark.parametrize("item", [b"{}", b"1", b'""', b"null", b"[[]]", b'{"a":1}'])
def test_million_small_values_are_rejected_before_decoding(item: bytes) -> None:
    frame = many(item)
    assert jsonrpc.is_large(frame)
    began = time.thread_time()
    with pytest.raises(jsonrpc.InvalidMessage, match="more than 250000 values") as caught:
        jsonrpc.parse_in_slices(frame)
    assert time.thread_time() - began < within(0.3)
    assert (caught.value.id, caught.value.code) == (7, "E-ANSWER-LIMIT")
    assert "pages" in caught.value.hint


def test_large_string_is_one_value() -> None:
    frame = answer(b'{"a":"' + b"1,2,[{" * 1_000_000 + b'"}')
    assert jsonrpc.is_large(frame)
    assert len(jsonrpc.parse_in_slices(frame).body["a"]) == 6_000_000


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (b'{"a":[' + b"0," * 100_000 + b"0]}", "100001 items"),
        (b'{"a":1,"\\u0061":2}', "duplicate key"),
        (b'{"a":[{"b":{"c":1,"c":2}}]}', "duplicate key"),
        (b'{"a":NaN}', "expected"),
        (b'{"a":"\\ud800"}', "escape"),
        (b'{"a":' + b"[" * 65 + b"]" * 65 + b"}", "deeper"),
    ],
)
def test_invalid_message_is_rejected_in_slices(result: bytes, why: str) -> None:
    with pytest.raises(jsonrpc.InvalidMessage, match=why) as caught:
        jsonrpc.parse_in_slices(answer(result))
    assert caught.value.id == 7


def test_oversized_list_item_is_omitted_and_others_stay() -> None:
    heavy = b'{"name":"million","inputSchema":{"a":[' + b",".join([b"[" + b"{}," * 90_000 + b"1]"] * 12) + b"]}}"
    frame = answer(b'{"tools":[{"name":"one"},' + heavy + b',{"name":"two"}],"nextCursor":"c"}')
    message = jsonrpc.parse_in_slices(frame, "tools")
    assert message.id == 7
    assert [tool["name"] for tool in message.body["tools"]] == ["one", "million", "two"]
    assert [large_messages.OMITTED in tool for tool in message.body["tools"]] == [False, True, False]
    assert message.body["nextCursor"] == "c"
    with pytest.raises(jsonrpc.InvalidMessage, match="more than 250000 values"):
        jsonrpc.parse_in_slices(frame)
    with pytest.raises(jsonrpc.InvalidMessage, match="more than 250000 values"):
        jsonrpc.parse_in_slices(frame, "prompts")


@pytest.mark.parametrize("result", [b"[%s]", b'{"tools":{"a":[%s]}}', b'{"tools":[%s'])
def test_oversized_non_list_is_rejected(result: bytes) -> None:
    with pytest.raises(jsonrpc.InvalidMessage) as caught:
        jsonrpc.parse_in_slices(answer(result % (b"[]," * 300_000 + b"1")), "tools")
    assert caught.value.id == 7


def test_slicing_yields_regularly() -> None:
    turns: list[float] = []
    frame = answer(b'{"a":[' + b",".join([b"[" + b"12345," * 40_000 + b"1]"] * 5) + b"]}")
    jsonrpc.parse_in_slices(frame, "", lambda: turns.append(time.thread_time()))
    assert max(after - before for before, after in pairwise(turns)) < 0.05
    assert len(turns) > 100
