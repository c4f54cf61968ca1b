"""What the status of an API's answer says about a call. Pure.

An API answers a request with a status. 2xx is an answer, and so is a 4xx that is about what was asked for: the API has
looked at it and says no, and whoever asked, a model too, must read why. What says that nothing was looked at is a
refusal (C1); what says neither may have been executed (C2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

from toolway.model import Certainty
from toolway.openapi.operation import Operation
from toolway.protocol import wire
from toolway.protocol.retry_after import parse_retry_after
from toolway.upstream.link import Fault
from toolway.upstream.transports.http.verdict import excerpt
from toolway.upstream.transports.http1.client import Target

_C1, _C2 = Certainty.C1, Certainty.C2

#: Statuses by which an API, or what stands before it, says that it has not looked at what was asked for.
_REFUSALS: Final[Mapping[int, tuple[str, str]]] = {
    401: ("wants credentials, or other ones", ""),
    403: ("does not allow this", "check what the credential is allowed to do"),
    405: ("does not take this method there", "check the address of the API, and whether its document is up to date"),
    406: ("cannot answer in a form that its document promises", "check whether its document is up to date"),
    413: ("finds the request too large", "send less in one call"),
    415: ("does not take a body of this type", "check whether its document is up to date"),
    421: ("is not responsible for this host", "check the address of the API"),
    429: ("wants fewer requests", "call less often, or wait as long as it asks"),
}
_NO_ANSWER: Final = frozenset({408, 425})  # neither: the API has not had the request, or not yet
_SEEN_BY_GET: Final = (301, 302, 303, 307, 308)
_MOVED: Final = (307, 308)  # these alone say that nothing was done here
_SHOWN: Final = 200


def is_answer(status: int) -> bool:
    """Whether the API has answered, with what was asked for or with a no."""
    return status < 500 and status not in _REFUSALS and status not in _NO_ANSWER


def failure(status: int, headers: Mapping[str, str], body: bytes, missing: Sequence[str] = ()) -> Fault:
    """The failure that any other status stands for. `missing` are credentials that the document asks for."""
    retry_after = parse_retry_after(headers.get("retry-after"), headers.get("date"))
    what, fix = _REFUSALS.get(status, ("failed", ""))
    certainty = _C1 if status in _REFUSALS or (status == 503 and retry_after is not None) else _C2
    if status == 401:
        fix = _how_to_log_in(missing)
    return Fault(
        f"the API {what} ({words(status)}){excerpt(body)}",
        certainty,
        code="E-HTTP-STATUS",
        status=status,
        retry_after=retry_after,
        fix=fix,
        challenge=headers.get("www-authenticate"),
    )


def _how_to_log_in(missing: Sequence[str]) -> str:
    if missing:
        wanted = ", ".join(f'"{name}": "${{keyring:NAME}}"' for name in missing)
        return f'give what its document asks for: "openapi": {{"security": {{{wanted}}}}}'
    return "check the credential under `openapi.security`, `headers` or `auth`"


def redirect(operation: Operation, target: Target, status: int, headers: Mapping[str, str]) -> Target | None:
    """Where to send the request again; None where the redirect is the answer, as the document says. Raises `Fault`
    where it is not to be followed."""
    location = headers.get("location", "")
    try:
        new = target.join(location) if location else None
    except ValueError:
        new = None
    reads = operation.method in ("GET", "HEAD")
    if new is not None and new.origin == target.origin and status in (_SEEN_BY_GET if reads else _MOVED):
        return new
    if any(str(status) == known.status or known.status.upper() == "3XX" for known in operation.responses):
        return None
    where = f"{new.origin}{new.path.partition('?')[0]}" if new is not None else "nowhere"
    raise Fault(
        f"the API redirects to {wire.clean_text(where, _SHOWN)} ({words(status)}), which is not followed",
        # "See there" may well be said when the work is done.
        _C1 if reads or status in _MOVED else _C2,
        code="E-HTTP-REDIRECT",
        status=status,
        fix="if you trust that address, make it the `url` of the entry",
    )


def redirect_loop() -> Fault:
    return Fault("the API redirects again and again", _C1, code="E-HTTP-REDIRECT", fix="check the url")


def unusable(reason: str) -> Fault:
    return Fault(f"the API's answer is not acceptable: {reason}", _C2, code="E-HTTP-CONTENT")


def words(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
