"""Limits how many bytes of an answer are read, for pydantic-ai's HTTP clients and for boto3.

A provider that never stops sending must not fill the memory, and the SDK clients have no such limit. Answers are
requested without compression, and compressed ones are rejected, because a few compressed bytes can become many.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final, TypeVar

import httpx2
from pydantic_ai.models import Model

MAX_WIRE_BYTES: Final = 64 * 1024 * 1024  # of one answer as it is sent, with the frames of its stream
MAX_CAUSES: Final = 20  # of one exception

ErrorT = TypeVar("ErrorT", bound=BaseException)


class _RefusedAnswer(Exception):
    """Raised while reading a model provider's answer that is too large or compressed."""


class _RefusedRead(httpx2.ReadError, _RefusedAnswer):
    """A rejected answer as a `ReadError`, which SDKs expect from their HTTP client httpx2."""


def limit_answers(model: Model) -> None:
    """Make a model's HTTP client request uncompressed answers, and stop at the size limit.

    Call this before each request, because the client may have been replaced since the last one.
    """
    provider = getattr(model, "provider", None) or getattr(model, "_provider", None)
    client = getattr(provider, "_own_http_client", None)
    if isinstance(client, httpx2.AsyncClient):
        client.headers["accept-encoding"] = "identity"
        hooks = client.event_hooks["response"]
        if _bound_response not in hooks:
            hooks.append(_bound_response)
        return
    if "botocore" in sys.modules:  # else the model has another client
        endpoint = getattr(getattr(model, "client", None), "_endpoint", None)
        session = getattr(endpoint, "http_session", None)
        if endpoint is not None and session is not None and not isinstance(session, _BoundedSession):
            endpoint.http_session = _BoundedSession(session)


def find_refusal(error: BaseException) -> str | None:
    """Return why a request's answer was not read to its end, or None if it was.

    It is not read to its end if it is too large or compressed.
    """
    refused = find_cause(error, _RefusedAnswer)
    return None if refused is None else str(refused)


def find_cause(error: BaseException, kind: type[ErrorT]) -> ErrorT | None:
    """Return the first exception of this kind among an exception and its causes, or None."""
    cause: BaseException | None = error
    for _ in range(MAX_CAUSES):
        if cause is None or isinstance(cause, kind):
            return cause
        cause = cause.__cause__ or cause.__context__
    return None


def _too_large() -> str:
    return f"the answer has more than {MAX_WIRE_BYTES} bytes with its frames: limit it with max_tokens"


async def _bound_response(response: httpx2.Response) -> None:
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise _RefusedRead(f"the answer is compressed ({encoding[:40]}), though it was requested without")
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    response.stream = _BoundedStream(response.stream)


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for data in self._stream:
            size += len(data)
            if size > MAX_WIRE_BYTES:
                raise _RefusedRead(_too_large())
            yield data

    async def aclose(self) -> None:
        await self._stream.aclose()


class _BoundedSession:
    """Wrapper of an HTTP session of botocore that limits the size of each response. Imports no botocore."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def send(self, request: Any) -> Any:
        """Send an HTTP request to a model provider; return the response, whose body was not read yet."""
        request.stream_output = True  # otherwise the session reads the body before it can be bounded
        response = self._session.send(request)
        response.raw = _BoundedBody(response.raw)
        return response

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


class _BoundedBody:
    """Response body of urllib3 that raises an error if more bytes than the limit arrive."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def stream(self, amount: int = 2**16, decode_content: bool | None = None) -> Iterator[bytes]:
        """Yield the parts of a response body as they arrive. Raises `_RefusedAnswer` if the body exceeds the limit."""
        size = 0
        for data in self._raw.stream(amount, decode_content):
            size += len(data)
            if size > MAX_WIRE_BYTES:
                self._raw.close()
                raise _RefusedAnswer(_too_large())
            yield data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)
