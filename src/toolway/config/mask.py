"""Secrets that a server repeats in its stderr or in an error are masked before they are shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from toolway.config.spec import Server

_SECRET_NAME = re.compile(r"key|token|secret|passw|pwd|auth|credential|cookie|session", re.IGNORECASE)
_SHORTEST = 6  # a shorter value is found in ordinary words


def masker(servers: Iterable[Server]) -> Callable[[str], str]:
    """A function that replaces every secret of these servers by `***`."""
    secrets = {secret for server in servers for secret in _secrets(server) if len(secret) >= _SHORTEST}
    if not secrets:
        return lambda text: text
    pattern = re.compile("|".join(re.escape(secret) for secret in sorted(secrets, key=len, reverse=True)))
    return lambda text: pattern.sub("***", text)


def _secrets(server: Server) -> Iterator[str]:
    for name, value in server.env.items():
        if _SECRET_NAME.search(name):
            yield value
    for value in server.headers.values():
        yield value
        yield value.rpartition(" ")[2]  # "Bearer …": the token alone
    if server.auth is not None:
        yield server.auth.client_secret or ""
        yield server.auth.private_key or ""
