"""A head that was read before is recognized by its bytes, and by nothing less."""

from __future__ import annotations

import pytest

from toolway.http.exchange import MAX_HEAD_BYTES, HeadCache


def message(head: str, body: str = "hello", length: str | None = None) -> bytes:
    size = length if length is not None else str(len(body))
    return f"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n{head}\r\n{body}".encode()


def test_head_matches_with_another_content_length() -> None:
    heads: HeadCache[str] = HeadCache()
    heads.put(message("A: 1\r\n"), "known")
    for body in ("a longer body", "hello"):
        head = heads.get(message("A: 1\r\n", body))
        assert head is not None
        assert (head.parsed, head.match(message("A: 1\r\n", body))) == ("known", body.encode())


def test_last_head_matches_next_message_of_any_length() -> None:
    heads: HeadCache[str] = HeadCache()
    heads.put(message("A: 1\r\n"), "known")
    head = heads.get(message("A: 1\r\n"))
    assert head is not None
    for body in ("hello", "other", "a longer body", "another body.", "", "hello", "x" * 1000):
        assert head.match(message("A: 1\r\n", body)) == body.encode()


OTHERS = pytest.mark.parametrize(
    "data",
    [
        message("A: 2\r\n"),
        message("A: 1\r\nB: 1\r\n"),
        message("A: 1\r\n", length="4"),
        message("A: 1\r\n", length="6"),
        message("A: 1\r\n", length="+5"),
        message("A: 1\r\n", length="5 "),
        message("A: 1\r\n", length=""),
        message("A: 1\r\n") + b"POST",
        message("A: 1\r\n")[:-1],
        message("A: 1\r\n").replace(b"\r\nContent-Length", b"\r\nX-Content-Length"),
        message("A: 1\r\n").replace(b"Content-Length: ", b"Content-Length:"),
        b"",
        b"\r\n\r\n",
    ],
)


@OTHERS
def test_different_head_is_not_found(data: bytes) -> None:
    heads: HeadCache[str] = HeadCache()
    heads.put(message("A: 1\r\n"), "known")
    assert heads.get(data) is None


@OTHERS
def test_different_head_does_not_match_the_last(data: bytes) -> None:
    heads: HeadCache[str] = HeadCache()
    heads.put(message("A: 1\r\n"), "known")
    head = heads.get(message("A: 1\r\n"))
    assert head is not None
    assert head.match(data) is None


def test_cache_is_bounded() -> None:
    heads: HeadCache[int] = HeadCache(10)
    for number in range(100):
        heads.put(message(f"A: {number}\r\n"), number)
    assert len(heads) <= 10
    heads.put(message(f"Long: {'x' * MAX_HEAD_BYTES}\r\n"), 0)
    assert heads.get(message(f"Long: {'x' * MAX_HEAD_BYTES}\r\n")) is None
