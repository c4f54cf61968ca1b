"""Which addresses a secret may be sent to, and which a person may be sent to. Pure."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from toolway.model import NotAuthorized


def check_url(url: str) -> None:
    """Raises `NotAuthorized` for an address that a server named and that must not be opened: anything but https,
    or http on this machine. What a program or a browser would make of another scheme is the server's choice."""
    problem = _problem(url)
    if problem:
        raise unusable(problem)


def unusable(problem: str) -> NotAuthorized:
    fix = "report it to the server's operator; nothing was sent there"
    return NotAuthorized(f"the server names an address for OAuth that {problem}", code="E-AUTH-URL", fix=fix)


def _problem(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "cannot be read"
    if parts.scheme not in ("http", "https") or not host or port == 0:
        return "is no http(s) address"
    if parts.username is not None or parts.password is not None:
        return "contains a user name"
    if any(not char.isprintable() or char.isspace() for char in url):
        return "contains characters that no address has"
    if parts.scheme == "http" and not is_loopback(host):
        return "is neither https nor on this machine"
    return ""


def is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
