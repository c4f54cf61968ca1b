"""How a browser shows who it is: a code that works once becomes a session.

`toolway ui` asks for a code and puts it behind the `#` of a link, which no log and no other server ever sees. The page
hands the code in and gets two halves of a session: a cookie that its scripts cannot read, and a key that only pages of
this very address can. A cookie alone is not enough, because browsers send it to every port of a host; a key alone is
not either, because a script could carry it away. Both are sealed or hashed into one handle, so nothing is kept here but
the codes that were not used yet.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from toolway.gateway.http.messages import Request
from toolway.gateway.principals import OWNER, KnownKeys, Principal
from toolway.gateway.sealed import Sealer

KIND: Final = "browser"
CODE_LIFE: Final = 120.0  # seconds in which a link must be opened
LIFE: Final = 12 * 3600.0  # seconds of a session
MAX_CODES: Final = 64  # not used yet; the oldest gives way
CODE_HEADER: Final = "x-toolway-code"
PAGE_HEADER: Final = "x-toolway-page"


class Browsers:
    """`keyring` is None where nobody is asked for a token."""

    def __init__(self, sealer: Sealer, keyring: KnownKeys | None, now: Callable[[], float]) -> None:
        self._sealer = sealer
        self._keyring = keyring
        self._now = now
        self._codes: OrderedDict[str, tuple[float, Principal]] = OrderedDict()

    def code(self, principal: Principal) -> str:
        """A code that opens one session for this principal, once and soon."""
        code = secrets.token_urlsafe(24)
        self._codes[_digest(code)] = (self._now() + CODE_LIFE, principal)
        while len(self._codes) > MAX_CODES:
            self._codes.popitem(last=False)
        return code

    def redeem(self, code: str) -> Principal | None:
        """Whose code it is; it is worth nothing from now on."""
        until, principal = self._codes.pop(_digest(code), (0.0, None))
        return self._still(principal.id) if principal is not None and self._now() < until else None

    def begin(self, principal: Principal) -> tuple[str, str]:
        """A session: what goes into the cookie, and the key of the page."""
        page = secrets.token_urlsafe(24)
        return self._sealer.seal(KIND, [principal.id, _digest(page)], LIFE), page

    def who(self, request: Request) -> Principal | None:
        """Whose session a request belongs to, if it comes from a page of ours and shows both halves."""
        headers = request.headers
        if headers.get("sec-fetch-site", "same-origin") != "same-origin" or PAGE_HEADER in request.repeated:
            return None
        sealed = _cookie(headers.get("cookie", ""), cookie_name(headers.get("host", "")))
        found = self._sealer.open(KIND, sealed) if sealed else None
        if not isinstance(found, list) or len(found) != 2:
            return None
        id_, digest = found
        if not hmac.compare_digest(_digest(headers.get(PAGE_HEADER, "")), str(digest)):
            return None
        return self._still(str(id_))

    def _still(self, id_: str) -> Principal | None:
        """The principal as it is now: a key may have been revoked meanwhile."""
        if id_ == OWNER.id:
            return OWNER
        return self._keyring.principal(id_) if self._keyring is not None else None


def cookie_name(host: str) -> str:
    """One for each port: two gateways of one machine share their cookies."""
    port = host.rpartition(":")[2]
    return f"toolway-{port}" if port.isdigit() else "toolway"


def set_cookie(host: str, value: str, *, seconds: float, secure: bool) -> tuple[str, str]:
    parts = [f"{cookie_name(host)}={value}", "Path=/admin", f"Max-Age={seconds:.0f}", "HttpOnly", "SameSite=Strict"]
    return "set-cookie", "; ".join([*parts, "Secure"] if secure else parts)


def _cookie(header: str, name: str) -> str:
    found = [value for each in header.split(";") for key, _, value in [each.strip().partition("=")] if key == name]
    return found[0] if len(found) == 1 else ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
