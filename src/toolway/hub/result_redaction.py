"""Redacts results: removes a server's secrets, and the kinds of data that the configuration names.

A result's bytes are searched for the known values. If none is found, the bytes pass unchanged. Otherwise the result
is decoded, and each value found in a string or key is replaced with `***`. Images, audio, and blobs are not
inspected. If redaction fails, the result is withheld.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from toolway.config.schema import Server
from toolway.errors import Certainty, ProtocolError
from toolway.protocol.jsonrpc import decode_json
from toolway.secrets.detection import TOKEN_FORMATS
from toolway.secrets.replacer import MASK
from toolway.secrets.server_secrets import ServerSecrets, secrets_of
from toolway.types import Call, CallHandler, CallResult, Middleware

THREAD_BYTES: Final = 256 * 1024  # larger results are searched in a thread, so other calls continue
MIN_IBAN_CHARS: Final = 15
REDACTION_CODE: Final = "E-REDACTION"
_EMAIL: Final = re.compile(r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}")
_CARD: Final = re.compile(r"(?<![0-9])[0-9](?:[ -]?[0-9]){12,18}(?![0-9])")
_IBAN: Final = re.compile(r"(?<![A-Za-z0-9])[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]){11,30}(?![A-Za-z0-9])")
_SSN: Final = re.compile(r"(?<![0-9-])(?!000|666|9)[0-9]{3}-(?!00)[0-9]{2}-(?!0000)[0-9]{4}(?![0-9-])")

Replace = Callable[[str], str]


class ResultRedactor:
    """Redacts one server's results: its own secrets, and the kinds of data in its `redact` setting."""

    def __init__(self, server: str, kinds: Iterable[str] = ()) -> None:
        self.secrets: ServerSecrets = secrets_of(server)
        self._replacers: tuple[Replace, ...] = tuple(_REPLACERS[kind] for kind in kinds)

    @property
    def is_active(self) -> bool:
        """Return True if results must be searched: the server has known secrets or a `redact` setting."""
        return bool(self.secrets.forms or self._replacers)

    async def redact(self, result: CallResult) -> CallResult:
        """Return the result with secrets removed. A large result is searched in a thread.

        If the result cannot be searched, raises `ProtocolError`, which says that the call ran.
        """
        try:
            if self._is_large(result):
                return await asyncio.to_thread(self.redact_now, result)
            return self.redact_now(result)
        except Exception as exc:
            raise ProtocolError(
                f"the result of {result.server}.{result.name} is withheld",
                server=result.server,
                tool=result.name,
                certainty=Certainty.EXECUTED,
                attempts=1,
                detail=f"searching it for secrets failed: {type(exc).__name__}",
                hint="do not retry, because the call ran; tell your administrator which tool it was",
                code=REDACTION_CODE,
            ) from exc

    def redact_now(self, result: CallResult) -> CallResult:
        """Return the result with secrets removed, or the same object if it contains none."""
        encoded = bytes(result.raw_bytes) if result.raw_bytes is not None else None
        if encoded is not None and not self._replacers and not self.secrets.may_be_in(encoded):
            return result
        value = decode_json(encoded) if encoded is not None else result.raw
        redacted = self._redact_value(value)
        return result if redacted is value else replace(result, raw=redacted, raw_bytes=None)

    def _is_large(self, result: CallResult) -> bool:
        if result.raw_bytes is not None:
            return len(result.raw_bytes) > THREAD_BYTES
        return bool(self._replacers)  # the size is not known, and patterns are slow

    def _redact_value(self, value: Any) -> Any:
        """Return a JSON value with secrets masked in its strings and keys, or the same object if it contains none."""
        if isinstance(value, str):
            return self._redact_text(value)
        if isinstance(value, list):
            items = [self._redact_value(each) for each in value]
            return value if all(new is old for new, old in zip(items, value, strict=True)) else items
        if isinstance(value, dict):
            binary = _binary_key(value)
            members = {
                self._redact_text(key): each if key == binary and isinstance(each, str) else self._redact_value(each)
                for key, each in value.items()
            }
            is_same = len(members) == len(value) and all(members.get(key) is each for key, each in value.items())
            return value if is_same else members
        return value

    def _redact_text(self, text: str) -> str:
        for secret in self.secrets.texts:
            if secret in text:
                text = text.replace(secret, MASK)
        for substitute in self._replacers:
            text = substitute(text)
        return text


class ResultRedaction:
    """The redactors of all of a hub's servers, by name."""

    def __init__(self, servers: Callable[[], Mapping[str, Server]]) -> None:
        self._servers = servers
        self._redactors: dict[str, tuple[Server, ResultRedactor]] = {}

    def find(self, name: str) -> ResultRedactor | None:
        """Return a server's redactor, or None if its results are passed on unredacted."""
        server, known = self._servers().get(name), self._redactors.get(name)
        if server is None:
            return None
        if known is None or known[0] is not server:
            known = self._redactors[name] = (server, ResultRedactor(name, server.redact))
        return known[1] if known[1].is_active else None


def redact_stored(find: Callable[[str], ResultRedactor | None]) -> Middleware:
    """Return middleware that redacts stored results, which come from the cache or an idempotency key.

    They were redacted when they arrived, but since then the server may have received another secret, or its entry
    another setting. `find` returns a server's redactor, or None if there is none.
    """

    def middleware(call: Call, next: CallHandler) -> Awaitable[CallResult]:
        redactor = find(call.server)
        return next(call) if redactor is None else run(redactor, call, next)

    async def run(redactor: ResultRedactor, call: Call, next: CallHandler) -> CallResult:
        result = await next(call)
        return await redactor.redact(result) if result.replayed or result.from_cache else result

    return middleware


def _binary_key(value: Mapping[str, Any]) -> str:
    """Return the key under which an image, sound, or resource stores base64 data, or "" for other objects."""
    if value.get("type") in ("image", "audio"):
        return "data"
    return "blob" if "uri" in value else ""


def _substitute(pattern: re.Pattern[str], mask: Replace = lambda found: MASK) -> Replace:
    def substitute(text: str) -> str:
        if pattern.search(text) is None:
            return text  # the same object
        replaced = pattern.sub(lambda found: mask(found[0]), text)
        return replaced if replaced != text else text

    return substitute


def _mask_card(text: str) -> str:
    """Return the mask if `text` is a payment card number (its Luhn digit is right), or else `text`."""
    digits = [int(each) for each in text if each.isdigit()]
    doubled = [2 * each - 9 * (each > 4) for each in digits[-2::-2]]
    return MASK if sum(digits[-1::-2] + doubled) % 10 == 0 and len(set(digits)) > 1 else text


def _mask_iban(text: str) -> str:
    """Mask the IBAN at the start of `text` if its check digits are right. Words after the IBAN may remain."""
    for end in [len(text), *(place for place in range(len(text) - 1, 0, -1) if text[place] == " ")]:
        compact = text[:end].replace(" ", "")
        digits = "".join(str(int(each, 36)) for each in compact[4:] + compact[:4])
        if len(compact) >= MIN_IBAN_CHARS and int(digits) % 97 == 1:
            return MASK + text[end:]
    return text


_REPLACERS: Final[dict[str, Replace]] = {
    "secrets": _substitute(TOKEN_FORMATS),
    "email": _substitute(_EMAIL),
    "card": _substitute(_CARD, _mask_card),
    "iban": _substitute(_IBAN, _mask_iban),
    "ssn": _substitute(_SSN),
}
