"""A closer look at an address whose server could not be had: where it redirects, what is beside it, whose clock is off.

Only harmless questions are asked (`ping`), with the headers of the entry, and of no other origin than the entry's own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from toolway.config.spec import Server
from toolway.protocol import wire
from toolway.protocol.shown import clean_text
from toolway.upstream.transports.http import base
from toolway.upstream.transports.http1.client import Client, HttpFault, Target

LIMIT: Final = 5.0  # seconds for one look
BODY: Final = 4096  # bytes of an answer that are looked at
USUAL_PATHS: Final = ("/mcp", "/api/mcp", "/v1/mcp")
SKEW: Final = 120.0  # seconds by which two clocks may differ
_PING: Final = wire.request(1, "ping", {})


@dataclass(frozen=True, slots=True)
class Seen:
    """What an address answered."""

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def kind(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def title(self) -> str:
        """The title of a web page."""
        low = self.body.lower()
        begin, end = low.find(b"<title>"), low.find(b"</title>")
        text = self.body[begin + 7 : end].decode(errors="replace") if 0 <= begin < end else ""
        return clean_text(" ".join(text.split()), 80)

    @property
    def is_mcp(self) -> bool:
        """Whether it answered as an endpoint of Streamable HTTP does, be it with a refusal."""
        if self.kind == "text/event-stream":
            return self.status == 200
        if self.kind != "application/json":
            return False
        try:
            return wire.parse(self.body).kind in ("result", "error")
        except wire.BadMessage:
            return False


@dataclass(frozen=True, slots=True)
class Closer:
    """What a closer look brought."""

    post: Seen = Seen()
    endpoint: str = ""  # an address of the same origin where an MCP endpoint answers
    location: str = ""  # where it redirects to
    skew: float = 0.0  # seconds by which our clock is behind the server's


async def look_closer(server: Server) -> Closer:
    """Look at the address of `server`, and at the usual ones beside it. Never raises for what it meets there."""
    client = Client(replace(base.limits(server), connect=min(LIMIT, server.timeout.connect)), server.reach)
    try:
        assert server.url is not None
        post = await _ask(client, server, server.url)
        endpoint = "" if post.is_mcp or not post.status else await _endpoint(client, server)
        return Closer(post, endpoint, _location(server.url, post), _skew(post.headers))
    finally:
        client.close()
        await asyncio.sleep(0)  # the loop closes the sockets in its next turn


async def _ask(client: Client, server: Server, url: str) -> Seen:
    headers, seen = base.bases(server).post, Seen()
    with suppress(HttpFault, TimeoutError, ValueError):
        async with asyncio.timeout(LIMIT), client.send("POST", Target.parse(url), [headers], _PING) as response:
            seen = Seen(response.status, dict(response.headers))
            data = bytearray()
            async for chunk in response:
                data += chunk
                if len(data) >= BODY or seen.kind == "text/event-stream":
                    break
            seen = replace(seen, body=bytes(data[:BODY]))
    return seen


async def _endpoint(client: Client, server: Server) -> str:
    assert server.url is not None
    parts = urlsplit(server.url)
    for path in USUAL_PATHS:
        url = urlunsplit((parts.scheme, parts.netloc, path, "", ""))
        if path != parts.path.rstrip("/") and (await _ask(client, server, url)).is_mcp:
            return url
    return ""


def _location(url: str, seen: Seen) -> str:
    if not 300 <= seen.status < 400:
        return ""
    try:
        target = Target.parse(url).join(seen.headers.get("location", ""))
    except ValueError:
        return ""
    return f"{target.origin}{target.path}"


def _skew(headers: Mapping[str, str]) -> float:
    with suppress(ValueError, TypeError):
        skew = parsedate_to_datetime(headers["date"]).timestamp() - time.time() if "date" in headers else 0.0
        return skew if abs(skew) > SKEW else 0.0
    return 0.0
