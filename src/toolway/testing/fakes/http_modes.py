"""What can go wrong between a client and a server over HTTP. See modes.py for how modes are set."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from functools import partial

from toolway.testing.fakes import modes
from toolway.testing.fakes.http_wire import JSON, event_bytes
from toolway.testing.fakes.lists import LISTS
from toolway.testing.fakes.spoil import SPOILS, padded, with_id
from toolway.testing.fakes.wire import encode, notification

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from toolway.testing.fakes.http_endpoint import Hit

MODES: modes.Table = {}
mode = partial(modes.mode, MODES)

_HOLD = 300  # seconds
_MEGABYTE = 1_000_000


async def _spoiled(spoil: modes.Run, hit: Hit) -> None:
    hit.whole(spoil(hit.reply, hit.setting))


for _name, _mode in SPOILS.items():
    MODES[_name] = modes.Mode(_name, partial(_spoiled, _mode.run), _mode.on, doc=_mode.doc)
MODES.update(LISTS)


# The connection


@mode("reset_before_response")
async def _reset_before_response(hit: Hit) -> None:
    """A TCP reset instead of an answer."""
    hit.exchange.reset()


@mode("close_before_response")
async def _close_before_response(hit: Hit) -> None:
    """The connection closed instead of an answer."""
    hit.exchange.cut()


@mode("close_after_response")
async def _close_after_response(hit: Hit) -> None:
    """The answer, and then a closed connection that was promised to stay."""
    hit.answer()
    hit.exchange.cut()


@mode("never")
async def _never(hit: Hit) -> None:
    """No answer."""
    await asyncio.sleep(_HOLD)


# The status and the head


@mode("status", early=True)
async def _status(hit: Hit) -> None:
    """The status VALUE (500); retry_after=… and challenge=… set Retry-After and WWW-Authenticate."""
    headers = {"Retry-After": hit.option("retry_after"), "WWW-Authenticate": hit.option("challenge")}
    hit.exchange.headers.update({name: value for name, value in headers.items() if value})
    hit.exchange.reply(int(hit.setting.number(500)), b"Not today.\n", {"Content-Type": "text/plain"})


@mode("redirect", early=True)
async def _redirect(hit: Hit) -> None:
    """A redirect with the status VALUE (307) to=URL, or to a path of this server that answers well."""
    hit.exchange.headers["Location"] = hit.option("to") or hit.endpoint.moved(hit.exchange)
    hit.exchange.reply(int(hit.setting.number(307)))


@mode("html")
async def _html(hit: Hit) -> None:
    """A web page with the status 200."""
    hit.exchange.reply(200, b"<!doctype html><title>Sign in</title>", {"Content-Type": "text/html"})


@mode("content_type")
async def _content_type(hit: Hit) -> None:
    """The answer as the type VALUE (text/plain)."""
    hit.exchange.reply(200, encode(hit.reply), {"Content-Type": hit.setting.value or "text/plain"})


@mode("empty_202")
async def _empty_202(hit: Hit) -> None:
    """The status 202 without a body."""
    hit.exchange.reply(202)


@mode("no_content")
async def _no_content(hit: Hit) -> None:
    """The status 204."""
    hit.exchange.head(204, {})


@mode("slow_head")
async def _slow_head(hit: Hit) -> None:
    """The head byte by byte, VALUE seconds apart (1)."""
    body = encode(hit.reply)
    head = hit.exchange.head_bytes(200, {**JSON, "Content-Length": str(len(body))})
    await _drip(hit, head)
    hit.exchange.raw(body)


# The body


@mode("slow_body")
async def _slow_body(hit: Hit) -> None:
    """The body byte by byte, VALUE seconds apart (1)."""
    body = encode(hit.reply)
    hit.exchange.head(200, {**JSON, "Content-Length": str(len(body))})
    await _drip(hit, body)


async def _drip(hit: Hit, data: bytes) -> None:
    for at in range(len(data)):
        hit.exchange.raw(data[at : at + 1])
        await asyncio.sleep(hit.setting.number(1))


@mode("cut_body")
async def _cut_body(hit: Hit) -> None:
    """Half of the body, then a closed connection."""
    body = encode(hit.reply)
    hit.exchange.head(200, {**JSON, "Content-Length": str(len(body))})
    hit.exchange.raw(body[: len(body) // 2])
    hit.exchange.cut()


@mode("wrong_length")
async def _wrong_length(hit: Hit) -> None:
    """A Content-Length that is off by VALUE (-10: ten bytes too many follow; a positive one: the body never ends)."""
    body = encode(hit.reply)
    hit.exchange.head(200, {**JSON, "Content-Length": str(len(body) + int(hit.setting.number(-10)))})
    hit.exchange.raw(body)
    if hit.setting.number(-10) > 0:
        await asyncio.sleep(_HOLD)


@mode("chunk_error")
async def _chunk_error(hit: Hit) -> None:
    """A body in chunks, one of them with a size that is no number."""
    hit.exchange.head(200, {**JSON, "Transfer-Encoding": "chunked"})
    hit.exchange.chunk(encode(hit.reply)[:20])
    hit.exchange.raw(b"zz\r\n" + encode(hit.reply)[20:] + b"\r\n0\r\n\r\n")


@mode("cl_and_te")
async def _cl_and_te(hit: Hit) -> None:
    """Content-Length and Transfer-Encoding in one answer."""
    body = encode(hit.reply)
    hit.exchange.head(200, {**JSON, "Content-Length": str(len(body)), "Transfer-Encoding": "chunked"})
    hit.exchange.chunk(body)
    hit.exchange.raw(b"0\r\n\r\n")


@mode("body_mb")
async def _body_mb(hit: Hit) -> None:
    """A body of VALUE megabytes (10)."""
    hit.whole(padded(hit.reply, hit.setting.number(10)))


@mode("gzip")
async def _gzip(hit: Hit) -> None:
    """An honest answer, but compressed though nobody asked for it."""
    hit.exchange.reply(200, gzip.compress(encode(hit.reply)), {**JSON, "Content-Encoding": "gzip"})


@mode("gzip_bomb")
async def _gzip_bomb(hit: Hit) -> None:
    """A compressed body of VALUE megabytes (200), a thousandth of that on the wire."""
    hit.exchange.head(200, {**JSON, "Content-Encoding": "gzip", "Transfer-Encoding": "chunked"})
    for piece in _bomb(encode(hit.reply), int(hit.setting.number(200))):
        hit.exchange.chunk(piece)
        await hit.exchange.drain()
    hit.exchange.raw(b"0\r\n\r\n")


def _bomb(message: bytes, megabytes: int) -> Iterator[bytes]:
    """A gzip stream of `message` and blanks, without the work of compressing the same megabyte again and again."""
    blanks = b" " * _MEGABYTE
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    yield b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + packer.compress(message) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(blanks) + packer.flush(zlib.Z_FULL_FLUSH)  # after a full flush it looks back at nothing
    check = zlib.crc32(message)
    for _ in range(megabytes):
        check = zlib.crc32(blanks, check)
        yield block
    size = (len(message) + megabytes * _MEGABYTE) % 2**32
    yield packer.flush() + check.to_bytes(4, "little") + size.to_bytes(4, "little")


@mode("id_of_other")
async def _id_of_other(hit: Hit) -> None:
    """The answer carries the id of another call in flight, or where there is none, one nobody asked with."""
    others = [id for id in hit.endpoint.in_flight if id != hit.reply["id"]]
    hit.whole(encode(with_id(hit.reply, others[0] if others else 987654321)))


# The stream of events


@mode("cut_sse")
async def _cut_sse(hit: Hit) -> None:
    """A stream cut VALUE (`before`, `between`, `inside`) its events; ids=1: they have ids; clean=1: ended in order."""
    where, ids = hit.setting.value or "before", hit.option("ids") in ("1", "True")
    exchange = hit.stream()
    event_id = f"event-{hit.endpoint.next_id()}" if ids else ""
    if ids:
        hit.endpoint.keep(event_id, hit.exchange, hit.reply)
    if where != "before":
        report = notification("notifications/progress", {"progressToken": "nobody", "progress": 1})
        exchange.event(encode(report), event_id)
    elif ids:
        exchange.event(b"", event_id)
    if where == "inside":
        event = event_bytes(encode(hit.reply))
        exchange.chunk(event[: len(event) // 2])
    if hit.option("clean") in ("1", "True"):
        exchange.end()
    else:
        exchange.cut()


@mode("sse_event_mb")
async def _sse_event_mb(hit: Hit) -> None:
    """An event of VALUE megabytes (10)."""
    hit.stream().event(padded(hit.reply, hit.setting.number(10)))
    hit.end()


@mode("sse_comment_flood")
async def _sse_comment_flood(hit: Hit) -> None:
    """VALUE megabytes (16) of comments, then the answer."""
    stream = hit.stream()
    comments = (b": " + b"x" * 97 + b"\n") * 1000
    for _ in range(int(hit.setting.number(16) * 10)):
        stream.chunk(comments)
        await stream.drain()
    hit.answer()


@mode("progress_flood")
async def _progress_flood(hit: Hit) -> None:
    """VALUE reports of progress for a token nobody gave (10000), then the answer."""
    stream = hit.stream()
    report = event_bytes(encode(notification("notifications/progress", {"progressToken": "nobody", "progress": 1})))
    full, rest = divmod(int(hit.setting.number(10_000)), 500)
    for _ in range(full):
        stream.chunk(report * 500)
        await stream.drain()
    if rest:
        stream.chunk(report * rest)
    hit.answer()


# The session and the probe


@mode("drop_sessions")
async def _drop_sessions(hit: Hit) -> None:
    """Forgets all sessions, and answers."""
    hit.endpoint.drop_sessions()
    hit.answer()


for _mode in (
    MODES["status"].renamed("discover_status", "server/discover", "The status VALUE (500) to server/discover."),
    MODES["status"].renamed(
        "discover_503_once", "server/discover", "The status 503 to the first server/discover.", value="503", times=1
    ),
    MODES["never"].renamed("probe_hang", "server/discover", "No answer to server/discover."),
):
    MODES[_mode.name] = _mode
