"""Fault modes of the fake HTTP server. The module `faults` explains how fault modes are set."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from functools import partial

from toolway.testing import faults
from toolway.testing.faults import CORRUPTIONS, LIST_FAULTS, pad_response, replace_id
from toolway.testing.http_endpoint import JSON_HEADERS, encode_event
from toolway.testing.wire import encode, make_notification

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from toolway.testing.http_endpoint import HttpFaultContext

HTTP_FAULTS: faults.FaultTable = {}
http_fault = partial(faults.register_fault, HTTP_FAULTS)

_MAX_HANG_S = 300  # seconds
_MEGABYTE_BYTES = 1_000_000


async def _send_corrupted(corrupt: faults.FaultFunction, context: HttpFaultContext) -> None:
    context.send_body(corrupt(context.response, context.setting))


for _fault_name, _fault_mode in CORRUPTIONS.items():
    HTTP_FAULTS[_fault_name] = faults.FaultMode(
        _fault_name, partial(_send_corrupted, _fault_mode.run), _fault_mode.on, doc=_fault_mode.doc
    )
HTTP_FAULTS.update(LIST_FAULTS)


# The connection


@http_fault("reset_before_response")
async def _reset_before_response(context: HttpFaultContext) -> None:
    """Reset the TCP connection instead of responding."""
    context.exchange.reset()


@http_fault("close_before_response")
async def _close_before_response(context: HttpFaultContext) -> None:
    """Close the connection instead of responding."""
    context.exchange.close()


@http_fault("close_after_response")
async def _close_after_response(context: HttpFaultContext) -> None:
    """Respond, then close a connection that was declared keep-alive."""
    context.send_response()
    context.exchange.close()


@http_fault("never")
async def _never(context: HttpFaultContext) -> None:
    """Send no response, and keep the connection open."""
    await asyncio.sleep(_MAX_HANG_S)


# The status and the head


@http_fault("status", early=True)
async def _status(context: HttpFaultContext) -> None:
    """Send the status VALUE (default 500); options: retry_after, challenge (WWW-Authenticate)."""
    headers = {"Retry-After": context.option("retry_after"), "WWW-Authenticate": context.option("challenge")}
    context.exchange.extra_headers.update({name: value for name, value in headers.items() if value})
    context.exchange.respond(int(context.setting.number(500)), b"Not today.\n", {"Content-Type": "text/plain"})


@http_fault("redirect", early=True)
async def _redirect(context: HttpFaultContext) -> None:
    """Redirect with status VALUE (default 307) to=URL, else to a fault-free path of this server."""
    context.exchange.extra_headers["Location"] = context.option("to") or context.endpoint.fault_free_path(
        context.exchange
    )
    context.exchange.respond(int(context.setting.number(307)))


@http_fault("html")
async def _html(context: HttpFaultContext) -> None:
    """Send an HTML page with the status 200 instead of the JSON-RPC response."""
    context.exchange.respond(200, b"<!doctype html><title>Sign in</title>", {"Content-Type": "text/html"})


@http_fault("content_type")
async def _content_type(context: HttpFaultContext) -> None:
    """Send the response with the Content-Type VALUE (default text/plain)."""
    context.exchange.respond(200, encode(context.response), {"Content-Type": context.setting.value or "text/plain"})


@http_fault("empty_202")
async def _empty_202(context: HttpFaultContext) -> None:
    """Send the status 202 without a body instead of the response."""
    context.exchange.respond(202)


@http_fault("no_content")
async def _no_content(context: HttpFaultContext) -> None:
    """Send the status 204 (No Content) instead of the response."""
    context.exchange.write_head(204, {})


@http_fault("slow_head")
async def _slow_head(context: HttpFaultContext) -> None:
    """Send status line and headers byte by byte, VALUE seconds apart (default 1), then the body."""
    body = encode(context.response)
    head = context.exchange.encode_head(200, {**JSON_HEADERS, "Content-Length": str(len(body))})
    await _write_slowly(context, head)
    context.exchange.write(body)


# The body


@http_fault("slow_body")
async def _slow_body(context: HttpFaultContext) -> None:
    """Send the response body byte by byte, VALUE seconds apart (default 1)."""
    body = encode(context.response)
    context.exchange.write_head(200, {**JSON_HEADERS, "Content-Length": str(len(body))})
    await _write_slowly(context, body)


async def _write_slowly(context: HttpFaultContext, data: bytes) -> None:
    for at in range(len(data)):
        context.exchange.write(data[at : at + 1])
        await asyncio.sleep(context.setting.number(1))


@http_fault("cut_body")
async def _cut_body(context: HttpFaultContext) -> None:
    """Send half of the response body, then close the connection."""
    body = encode(context.response)
    context.exchange.write_head(200, {**JSON_HEADERS, "Content-Length": str(len(body))})
    context.exchange.write(body[: len(body) // 2])
    context.exchange.close()


@http_fault("wrong_length")
async def _wrong_length(context: HttpFaultContext) -> None:
    """Send a Content-Length off by VALUE (default -10); if positive, the body never ends."""
    body = encode(context.response)
    context.exchange.write_head(
        200, {**JSON_HEADERS, "Content-Length": str(len(body) + int(context.setting.number(-10)))}
    )
    context.exchange.write(body)
    if context.setting.number(-10) > 0:
        await asyncio.sleep(_MAX_HANG_S)


@http_fault("chunk_error")
async def _chunk_error(context: HttpFaultContext) -> None:
    """Send a chunked body in which one chunk size is not a number."""
    context.exchange.write_head(200, {**JSON_HEADERS, "Transfer-Encoding": "chunked"})
    context.exchange.write_chunk(encode(context.response)[:20])
    context.exchange.write(b"zz\r\n" + encode(context.response)[20:] + b"\r\n0\r\n\r\n")


@http_fault("cl_and_te")
async def _cl_and_te(context: HttpFaultContext) -> None:
    """Send Content-Length and Transfer-Encoding in one response."""
    body = encode(context.response)
    context.exchange.write_head(200, {**JSON_HEADERS, "Content-Length": str(len(body)), "Transfer-Encoding": "chunked"})
    context.exchange.write_chunk(body)
    context.exchange.write(b"0\r\n\r\n")


@http_fault("body_mb")
async def _body_mb(context: HttpFaultContext) -> None:
    """Send a response body of VALUE megabytes (default 10)."""
    context.send_body(pad_response(context.response, context.setting.number(10)))


@http_fault("gzip")
async def _gzip(context: HttpFaultContext) -> None:
    """Send a good response, but gzip-compressed although the client did not accept gzip."""
    context.exchange.respond(200, gzip.compress(encode(context.response)), {**JSON_HEADERS, "Content-Encoding": "gzip"})


@http_fault("gzip_bomb")
async def _gzip_bomb(context: HttpFaultContext) -> None:
    """Send a gzip body of VALUE megabytes (default 200), a thousandth of that on the wire."""
    context.exchange.write_head(200, {**JSON_HEADERS, "Content-Encoding": "gzip", "Transfer-Encoding": "chunked"})
    for piece in _gzip_bomb_chunks(encode(context.response), int(context.setting.number(200))):
        context.exchange.write_chunk(piece)
        await context.exchange.drain()
    context.exchange.write(b"0\r\n\r\n")


def _gzip_bomb_chunks(message: bytes, megabytes: int) -> Iterator[bytes]:
    """Yield a gzip stream that decompresses to `message` and `megabytes` of blanks.

    Compresses one megabyte of blanks and repeats the compressed block.
    """
    blanks = b" " * _MEGABYTE_BYTES
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    yield b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + packer.compress(message) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(blanks) + packer.flush(zlib.Z_FULL_FLUSH)  # refers to no earlier data after a full flush
    checksum = zlib.crc32(message)
    for _ in range(megabytes):
        checksum = zlib.crc32(blanks, checksum)
        yield block
    size = (len(message) + megabytes * _MEGABYTE_BYTES) % 2**32
    yield packer.flush() + checksum.to_bytes(4, "little") + size.to_bytes(4, "little")


@http_fault("id_of_other")
async def _id_of_other(context: HttpFaultContext) -> None:
    """Send the response with the id of another call in flight, else with an unknown id."""
    other_ids = [id for id in context.endpoint.in_flight_ids if id != context.response["id"]]
    context.send_body(encode(replace_id(context.response, other_ids[0] if other_ids else 987654321)))


# The stream of events


@http_fault("cut_sse")
async def _cut_sse(context: HttpFaultContext) -> None:
    """End the SSE stream before, between or inside events (VALUE); ids=1: with event ids; clean=1: orderly."""
    cut_position, has_ids = context.setting.value or "before", context.option("ids") in ("1", "True")
    exchange = context.open_stream()
    event_id = f"event-{context.endpoint.next_id()}" if has_ids else ""
    if has_ids:
        context.endpoint.keep_for_resume(event_id, context.exchange, context.response)
    if cut_position != "before":
        report = make_notification("notifications/progress", {"progressToken": "unknown", "progress": 1})
        exchange.send_event(encode(report), event_id)
    elif has_ids:
        exchange.send_event(b"", event_id)
    if cut_position == "inside":
        event = encode_event(encode(context.response))
        exchange.write_chunk(event[: len(event) // 2])
    if context.option("clean") in ("1", "True"):
        exchange.end_stream()
    else:
        exchange.close()


@http_fault("sse_event_mb")
async def _sse_event_mb(context: HttpFaultContext) -> None:
    """Send the response as an SSE event of VALUE megabytes (default 10)."""
    context.open_stream().send_event(pad_response(context.response, context.setting.number(10)))
    context.end_stream()


@http_fault("sse_comment_flood")
async def _sse_comment_flood(context: HttpFaultContext) -> None:
    """Send VALUE megabytes of SSE comments (default 16), then the response."""
    stream = context.open_stream()
    comments = (b": " + b"x" * 97 + b"\n") * 1000
    for _ in range(int(context.setting.number(16) * 10)):
        stream.write_chunk(comments)
        await stream.drain()
    context.send_response()


@http_fault("progress_flood")
async def _progress_flood(context: HttpFaultContext) -> None:
    """Send VALUE progress notifications (default 10000) for an unknown token, then the response."""
    stream = context.open_stream()
    report = encode_event(
        encode(make_notification("notifications/progress", {"progressToken": "unknown", "progress": 1}))
    )
    full, rest = divmod(int(context.setting.number(10_000)), 500)
    for _ in range(full):
        stream.write_chunk(report * 500)
        await stream.drain()
    if rest:
        stream.write_chunk(report * rest)
    context.send_response()


# The session and the probe


@http_fault("drop_sessions")
async def _drop_sessions(context: HttpFaultContext) -> None:
    """Drop all legacy MCP sessions, then respond."""
    context.endpoint.drop_sessions()
    context.send_response()


for _fault_mode in (
    HTTP_FAULTS["status"].with_name(
        "discover_status", "server/discover", "Send the status VALUE (500) to server/discover."
    ),
    HTTP_FAULTS["status"].with_name(
        "discover_503_once",
        "server/discover",
        "Send the status 503 to the first server/discover.",
        value="503",
        times=1,
    ),
    HTTP_FAULTS["never"].with_name("probe_hang", "server/discover", "Send no response to server/discover."),
):
    HTTP_FAULTS[_fault_mode.name] = _fault_mode
