"""Fuzz target: HTTP error responses give a finite wait, and a certainty only if it is proved."""

from __future__ import annotations

import math

from harness import Bytes, fuzz, instrumented

with instrumented(__name__ == "__main__"):
    from toolway.errors import Certainty
    from toolway.upstream.transport import JSONRPCError, TransportError
    from toolway.upstream.transports import http_responses
    from toolway.upstream.transports.http_responses import parse_retry_after

PROVED = {401, 403, 405, 406, 413, 415, 421, 429}
REFUSED = {400, 404, 409, 410, 422}  # without a JSON-RPC error
NAMES = ("retry-after", "date", "content-type", "www-authenticate")
STATUSES = (400, 401, 403, 404, 405, 408, 409, 413, 429, 500, 502, 503, 504, 599)
ID = 7


def check(data: bytes) -> None:
    source = Bytes(data)
    status, in_session = STATUSES[source.number(len(STATUSES) - 1)], bool(source.number(1))
    *values, body = source.rest.split(b"\n", len(NAMES))
    headers = {name: value.decode("latin-1") for name, value in zip(NAMES, values, strict=False)}
    wait = parse_retry_after(headers.get("retry-after"), headers.get("date"))
    assert wait is None or (math.isfinite(wait) and wait >= 0)
    problem = http_responses.error_for_status(status, headers, body, ID, in_session=in_session)
    _check_refusal(problem, status, wait, in_session)
    if isinstance(problem, TransportError) and problem.code != "E-HTTP-SESSION":
        assert problem.www_authenticate == headers.get("www-authenticate")
    notice = http_responses.error_for_notification(status, headers, body, in_session=in_session)
    assert isinstance(notice, TransportError)


def _check_refusal(problem: TransportError | JSONRPCError, status: int, wait: float | None, in_session: bool) -> None:
    if isinstance(problem, JSONRPCError):
        assert status < 500 and status not in PROVED
        assert problem.status == status and isinstance(problem.code, int)
        return
    gone = in_session and status in (400, 404) and problem.code == "E-HTTP-SESSION"
    refused = status in PROVED | REFUSED or (status == 503 and wait is not None) or gone
    assert problem.certainty is (Certainty.REJECTED if refused else Certainty.UNKNOWN)
    assert problem.status == status
    assert gone or problem.retry_after == wait
    assert len(problem.reason) < 1000 and "\x1b" not in problem.reason


if __name__ == "__main__":
    fuzz(check)
