"""What a server of 2024-11-05 says with its first event, and with its responses to POSTs. Pure.

A response to a POST is no answer: it says whether the message was taken. A status of 2xx means that it was, so that
from then on the work may have been done (C2) until the answer comes on the stream.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from toolway.model import Certainty
from toolway.protocol import wire
from toolway.upstream.link import Fault, RpcError
from toolway.upstream.transports.http import verdict
from toolway.upstream.transports.http1.client import Target

_LONGEST: Final = 8192  # characters of an address
_SHOWN: Final = 200
_GONE: Final = 400  # bytes of a body that may explain that a session is gone; a longer one explains something else
_NO_SESSION: Final = re.compile(
    rb"(?i)\b(?:no|not|unknown|invalid|expired|missing|find)\b.{0,60}\bsession|session.{0,60}\b(?:not|unknown|invalid|expired)\b"
)
_STICKY: Final = "where several copies of the server stand behind one address, a session must stay with one of them"
_FOLLOWED: Final = (301, 302, 303, 307, 308)  # a GET stays a GET with each of them


def endpoint(stream: Target, said: bytes) -> Target:
    """Where messages go, by the first event of `stream`. Raises `Fault`."""
    text = said.decode("utf-8", "replace").strip()
    try:
        if len(text) > _LONGEST:
            raise ValueError
        target = stream.join(text) if text else None
    except ValueError:
        target = None
    if target is None:
        raise _no_endpoint(f"the server names an address for messages that is none: {_shown(text)}")
    if target.origin != stream.origin:
        # The credential of the entry is for its own origin; and who may write to one port may not know another.
        raise _no_endpoint(
            f"the server wants messages to be sent to another origin, {wire.clean_text(str(target.origin), _SHOWN)}",
            f"let the server name a path, or an address of {stream.origin}; often it must be told its public address",
        )
    return target


def no_endpoint(how: str) -> Fault:
    return Fault(
        f"the stream of the server does not begin with the address for messages: {how}",
        Certainty.C0,
        code="E-SSE-STREAM",
        fix="check that the url is the SSE endpoint of an MCP server; it often ends with /sse",
    )


def _no_endpoint(reason: str, fix: str = "ask whoever runs the server to correct it") -> Fault:
    return Fault(reason, Certainty.C0, code="E-SSE-ENDPOINT", fix=fix)


def no_stream(status: int, headers: Mapping[str, str], body: bytes) -> Fault:
    """A GET that brought no stream of events. Nothing was asked by it, but a credential may have been refused (C1)."""
    if status >= 400:
        return verdict.refused_notice(status, headers, body, in_session=False)
    kind = verdict.media_type(headers) or "no content type"
    return Fault(
        f"the server answered a GET with {status} and {wire.clean_text(kind, 80)} instead of a stream of events",
        Certainty.C1,
        code="E-SSE-STREAM",
        status=status,
        fix='if the server speaks Streamable HTTP, set "type": "http"; else check the url',
    )


def moved(target: Target, status: int, headers: Mapping[str, str]) -> Target:
    """Where the stream is to be had. Raises `Fault` where a redirect is not to be followed."""
    return verdict.redirect(target, 307 if status in _FOLLOWED else status, headers)


def refused(status: int, headers: Mapping[str, str], body: bytes, id_: int | None) -> Fault | RpcError:
    """The failure that a status of 400 and more stands for."""
    text = len(body) <= _GONE and verdict.media_type(headers) != "application/json"
    if status == 400 and text and _NO_SESSION.search(body):
        gone = "the server no longer knows the session (400)"
        return Fault(gone, Certainty.C1, code="E-HTTP-SESSION", status=400, fix=_STICKY)
    problem = verdict.refusal(status, headers, body, id_, in_session=True)
    if isinstance(problem, Fault) and problem.code == "E-HTTP-SESSION":
        problem.fix = _STICKY
    return problem


def taken(status: int, headers: Mapping[str, str], body: bytes, id_: int) -> wire.Message | None:
    """A message was taken, or so it seems. Some servers answer here instead of on the stream: that answer is returned.
    Raises `Fault` for what no MCP server says."""
    kind = verdict.media_type(headers)
    if kind == "text/html":
        raise verdict.no_answer(status, headers, body)
    if kind != "application/json" or not body:
        return None
    try:
        message = wire.parse(body)
    except wire.BadMessage:
        return None
    return message if message.kind in ("result", "error") and verdict.same_id(message.id, id_) else None


def _shown(text: str) -> str:
    return wire.clean_text(text.partition("?")[0], _SHOWN) or "nothing"
