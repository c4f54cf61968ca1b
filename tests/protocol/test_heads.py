"""A head that was read before is recognised by its bytes, and by nothing less."""

from __future__ import annotations

import pytest

from toolway.protocol.heads import LONGEST, Heads


def message(head: str, body: str = "hello", length: str | None = None) -> bytes:
    size = length if length is not None else str(len(body))
    return f"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n{head}\r\n{body}".encode()


def test_the_same_head_with_another_length() -> None:
    heads: Heads[str] = Heads()
    heads.learn(message("A: 1\r\n"), "known")
    assert heads.find(message("A: 1\r\n", "a longer body")) == ("known", b"a longer body")
    assert heads.find(message("A: 1\r\n")) == ("known", b"hello")


@pytest.mark.parametrize(
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
def test_anything_else_is_for_the_parser(data: bytes) -> None:
    heads: Heads[str] = Heads()
    heads.learn(message("A: 1\r\n"), "known")
    assert heads.find(data) is None


def test_what_is_remembered_is_bounded() -> None:
    heads: Heads[int] = Heads(10)
    for number in range(100):
        heads.learn(message(f"A: {number}\r\n"), number)
    assert len(heads) <= 10
    heads.learn(message(f"Long: {'x' * LONGEST}\r\n"), 0)
    assert heads.find(message(f"Long: {'x' * LONGEST}\r\n")) is None
