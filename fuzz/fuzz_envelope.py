"""Fuzz target: both decoders of JSON-RPC give the same message within the limits, or raise `InvalidMessage`."""

from __future__ import annotations

import json
from typing import Any

from harness import fuzz, instrumented

with instrumented(__name__ == "__main__"):
    from toolway.protocol import jsonrpc

KINDS = {"request", "notification", "result", "error"}


def check(data: bytes) -> None:
    message, gently = _parsed(jsonrpc.parse_message, data), _parsed(jsonrpc.parse_in_slices, data)
    assert (message is None) == (gently is None), "the decoders disagree about what is acceptable"
    if message is None or gently is None:
        return
    assert message == gently, "the decoders disagree about what it says"
    _check_fields(message)
    value = json.loads(data)
    assert _depth(value) <= jsonrpc.MAX_DEPTH + 1
    assert message.body in (value.get("params"), value.get("result"), value.get("error"), {})


def _parsed(parse: Any, data: bytes) -> jsonrpc.Message | None:
    try:
        message: jsonrpc.Message = parse(data)
    except jsonrpc.InvalidMessage as bad:
        _check_refusal(bad)
        return None
    return message


def _check_refusal(bad: jsonrpc.InvalidMessage) -> None:
    assert bad.id is None or isinstance(bad.id, int | str)
    assert bad.reason


def _check_fields(message: jsonrpc.Message) -> None:
    assert message.kind in KINDS
    assert isinstance(message.body, dict)
    assert (message.kind == "request") <= (message.id is not None)
    if isinstance(message.id, str):
        assert len(message.id.encode()) <= 256
    elif message.id is not None:
        assert type(message.id) is int and abs(message.id) <= 2**53
    if message.kind == "error":
        code, text, _ = jsonrpc.parse_error(message.body)
        assert jsonrpc.classify_error(code) is not None
        assert len(text) <= 2000 and "\x1b" not in text


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())
        ]
    return depth


if __name__ == "__main__":
    fuzz(check)
