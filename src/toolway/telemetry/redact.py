"""What is hidden before anything is written down for later: all rules, in this one file.

1. A value whose name usually names a secret (`password`, `api_key`, …), or that an operator named, becomes a mark.
2. A text that looks like a token (`ghp_…`, a JWT, a private key) becomes a mark, whatever its name.
3. What was fetched as a secret by this process is hidden inside every text (`secrets/known.py`).
4. Of an address the password and the query are hidden: a query is where tokens are put.
5. What is too deep, too wide or too long is cut, and says so.

A mark is made from the value with a key of the log, so that two equal values can be seen to be equal, and nobody
without the key can find out by trying which value it was.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from toolway.secrets.known import HIDDEN, hide
from toolway.secrets.likely import is_secret_like, names_secret

DEEPEST: Final = 16
WIDEST: Final = 256  # members of one object or list
LONGEST: Final = 2048  # characters of one text
CUT: Final = "…"
_encode = msgspec.json.Encoder(order="deterministic").encode
_ADDRESS: Final = re.compile(r"(\b[A-Za-z][\w+.-]*://)(?:[^\s/?#@]*@)?([^\s?#]*)([?#]\S*)?")


class Redactor:
    def __init__(self, key: bytes, names: Collection[str] = ()) -> None:
        """`names`: further names of values that are hidden, as the operator says."""
        self._key = key[:64]
        self._names = frozenset(name.lower() for name in names)

    def digest(self, value: Any) -> str:
        """What stands for a value: the same for the same JSON, and no way back."""
        return hashlib.blake2b(_encode(value), key=self._key, digest_size=16).hexdigest()

    def mark(self, value: Any) -> str:
        """What is shown instead of a secret."""
        return f"{HIDDEN}{self.digest(value)[:12]}"

    def value(self, value: Any, name: str = "", depth: int = 0) -> Any:
        """The same JSON without secrets, and of bounded size."""
        if self._is_named(name) and value not in (None, "", True, False):
            return self.mark(value)
        if isinstance(value, str):
            return self.text(value, name)
        if depth >= DEEPEST:
            return CUT
        if isinstance(value, Mapping):
            return self._object(value, depth)
        if isinstance(value, list | tuple):
            shown = [self.value(item, name, depth + 1) for item in value[:WIDEST]]
            return [*shown, CUT] if len(value) > WIDEST else shown
        return value if value is None or isinstance(value, bool | int | float) else CUT

    def text(self, text: str, name: str = "") -> str:
        if is_secret_like(name, text) and "://" not in text:
            return self.mark(text)
        shown = hide(address(text) if "://" in text else text)
        return shown if len(shown) <= LONGEST else shown[:LONGEST] + CUT

    def _object(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        for key, item in value.items():
            if len(shown) >= WIDEST:
                shown[CUT] = CUT
                break
            shown[self.text(str(key))] = self.value(item, str(key), depth + 1)
        return shown

    def _is_named(self, name: str) -> bool:
        return bool(name) and (name.lower() in self._names or names_secret(name))


def address(text: str) -> str:
    """A text whose addresses have lost their password and their query.

    >>> address("see https://user:pw@example.com/a?token=1#x")
    'see https://example.com/a?***'
    """
    return _ADDRESS.sub(lambda found: f"{found[1]}{found[2]}{'?' + HIDDEN if found[3] else ''}", text)
