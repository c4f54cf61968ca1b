"""Which addresses may get a model provider's API key: compares URLs with `toolway.modelUrls`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from toolway.network.policy import canonical_host

_PORTS: Final = {"http": 80, "https": 443}


class ModelAddress(NamedTuple):
    """The parts of a URL that decide who gets a request, normalized."""

    scheme: str
    host: str
    port: int
    path: tuple[str, ...]

    def covers(self, other: ModelAddress) -> bool:
        """Return True if `other` is this address or below its path."""
        return self[:3] == other[:3] and other.path[: len(self.path)] == self.path


def parse_model_url(url: str) -> ModelAddress | None:
    """Return the address of an http or https URL.

    Return None for other URLs, and for URLs that could hide where they lead with a user, query, fragment, or `..`.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        return None
    path = tuple(each for each in parts.path.split("/") if each)
    is_plain = url.isascii() and url.isprintable() and " " not in url and "\\" not in url
    if not is_plain or parts.scheme not in _PORTS or not parts.hostname or "@" in parts.netloc:
        return None
    if parts.query or parts.fragment or any(set(unquote(each)) <= {"."} or "/" in unquote(each) for each in path):
        return None
    return ModelAddress(parts.scheme, canonical_host(parts.hostname), port, path)


def is_listed(url: str, listed: Iterable[str]) -> bool:
    """Return True if a URL is listed, or is below a listed one."""
    address = parse_model_url(url)
    found = (parse_model_url(each) for each in listed)
    return address is not None and any(each is not None and each.covers(address) for each in found)
