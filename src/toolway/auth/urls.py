"""Checks OAuth URLs before they receive a secret or are opened for the user. No I/O."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from toolway.protocol.sanitize import browser_url_problem
from toolway.types import AuthError


def check_oauth_url(url: str) -> None:
    """Raise `AuthError` if an OAuth URL is neither https nor http on this machine.

    With other schemes, the server could choose which program opens the URL. A user name in the URL is rejected too.
    """
    problem = _url_problem(url)
    if problem:
        raise oauth_url_error(problem)


def oauth_url_error(problem: str) -> AuthError:
    """Return the `AuthError` for an OAuth URL that must not be used. `problem` completes the sentence "it …"."""
    hint = "report it to whoever runs the server; nothing was sent there"
    return AuthError(f"the server names an OAuth URL that {problem}", code="E-AUTH-URL", hint=hint)


def _url_problem(url: str) -> str:
    """Return the reason why an OAuth URL must not be used, or an empty string if it may be used."""
    problem = browser_url_problem(url)
    if problem:
        return problem
    parts = urlsplit(url)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        return "is neither https nor on this machine"
    return ""


def is_loopback(host: str) -> bool:
    """Return True if `host` is localhost or a loopback address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
