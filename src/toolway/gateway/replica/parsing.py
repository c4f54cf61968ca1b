"""Texts of options → values, each checked before anything starts. Pure.

Every function raises `ConfigError` for what cannot be used; what it shows of an address has no password in it.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote, urlsplit

from toolway.errors import ConfigError

NONE: Final = "none"  # as an address to advertise: others reach us over NATS alone
MOST_SERVERS: Final = 32  # addresses of NATS
MOST_LABELS: Final = 32
LARGEST_CAPACITY: Final = 100_000
LONGEST_NAME: Final = 63  # that of a pod in Kubernetes

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # a part of a NATS subject, and of a host's name
_LABEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_=/:-]{0,62}")
_NATS: Final = frozenset({"nats", "tls", "ws", "wss"})


def nats(text: str) -> tuple[str, ...]:
    found = tuple(each.strip() for each in text.split(",") if each.strip())
    if not 0 < len(found) <= MOST_SERVERS:
        raise wrong("--cluster names no NATS" if not found else "--cluster names too many", f"{len(found)} addresses")
    return tuple(_nats_address(each) for each in found)


def _nats_address(text: str) -> str:
    address = text if "://" in text else f"nats://{text}"
    scheme, host = _scheme_and_host(address)
    if scheme not in _NATS or not host:
        raise wrong(
            "--cluster is not an address of NATS", _without_secret(text), "write it so: --cluster nats://HOST:4222"
        )
    return address


def database(text: str) -> str:
    address = re.sub(r"^postgres(ql)?(\+\w+)?://", "postgresql://", text)  # as other programs write it, too
    if not address.startswith("postgresql://") and not re.match(r"sqlite:///+[^/]", address):
        raise wrong(
            "--database is not an address of PostgreSQL",
            _without_secret(text),
            "write it so: --database postgresql://USER@HOST/NAME",
        )
    return address


def advertise(text: str | None) -> str | None:
    if text is None:
        return None
    if text.lower() == NONE:
        return ""
    scheme, host = _scheme_and_host(text)
    parts = urlsplit(text) if scheme in ("http", "https") and host else None
    if parts is None or parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise wrong(
            "--advertise is not the address of a gateway",
            _without_secret(text),
            f"write it so: --advertise http://HOST:8765, or --advertise {NONE} where others cannot reach it",
        )
    return f"{scheme}://{parts.netloc}"


def _scheme_and_host(address: str) -> tuple[str, str]:
    try:
        parts = urlsplit(address)
        _ = parts.port  # raises where it is no number
        return parts.scheme, parts.hostname or ""
    except ValueError:
        return "", ""


def _without_secret(text: str) -> str:
    return f"***@{text.rpartition('@')[2]}"[:200] if "@" in text else text[:200]


def secrets_of(address: str) -> set[str]:
    """What nobody should see of an address that can be used: the password, or a token that stands in its place."""
    parts = urlsplit(address)
    found = parts.password or (parts.username if parts.scheme in _NATS else None)
    return {found, unquote(found)} if found else set()


def name(flag: str, text: str) -> str:
    if not _NAME.fullmatch(text):
        raise wrong(
            f"{flag} is not a name",
            f"{text[:80]!r}",
            f"use small letters, digits and hyphens, {LONGEST_NAME} at the most",
        )
    return text


def capacity(text: str | None) -> int:
    if text is None:
        return 1000
    if not text.isdecimal() or not 0 < int(text) <= LARGEST_CAPACITY:
        raise wrong("--capacity is not a capacity", f"{text[:80]!r}", f"use a number from 1 to {LARGEST_CAPACITY:,}")
    return int(text)


def labels(text: str) -> tuple[str, ...]:
    found = sorted({each.strip() for each in text.split(",") if each.strip()})
    bad = [each for each in found if not _LABEL.fullmatch(each)]
    if bad or len(found) > MOST_LABELS:
        raise wrong(
            "--labels are not labels",
            f"{bad[0][:80]!r}" if bad else f"{len(found)} of them",
            f"write at most {MOST_LABELS} with commas between, such as: --labels gpu,region=eu",
        )
    return tuple(found)


def wrong(what: str, evidence: str, fix: str = "see: toolway serve --help", code: str = "E-CLUSTER") -> ConfigError:
    return ConfigError(what, evidence=evidence, fix=fix, code=code)
