"""Who may be connected to an address that is not public: hosts and networks that the operator named."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit

from toolway.addresses.kinds import IP, LOOPBACK, METADATA, PRIVATE, SHARED, Kind, kind_of
from toolway.errors import ConfigError

#: The addresses of a name, as text; may block, and raises `OSError`. It is called in a thread.
Lookup = Callable[[str], Iterable[str]]
#: What an entry may name by writing it down: it is read as it is written, and no name server has a say.
_OWN: Final = frozenset({LOOPBACK, PRIVATE, SHARED})
_NAME: Final = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
#: Kept for networks inside, by rule or by habit.
_INSIDE: Final = (".local", ".internal", ".lan", ".home", ".home.arpa", ".corp", ".intranet", ".private")
_EXAMPLE: Final = '"toolway": {"addresses": {"allow": ["jira.corp.example", "10.0.0.0/8"]}}'


@dataclass(frozen=True, slots=True)
class Addresses:
    """Which addresses beside the public ones may be connected to. Cloud metadata is allowed by its exact address
    alone."""

    allow: tuple[str, ...] = ()  # names ("jira.corp.example", "*.corp.example"), addresses and networks ("10.0.0.0/8")
    written: tuple[str, ...] = ()  # hosts of the entry itself: `localhost`, and loopback and private ones, are allowed
    lookup: Lookup | None = field(default=None, repr=False)  # who is asked for names instead of the system
    trusts_entries: bool = True  # false: an entry allows nothing by writing it down, because a stranger wrote it
    _names: frozenset[str] = field(default=frozenset(), init=False, repr=False, compare=False)
    _networks: tuple[IPv4Network | IPv6Network, ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.allow:
            return
        names, networks = set(), []
        for text in self.allow:
            network = _network(text)
            if network is not None:
                networks.append(network)
            else:
                names.add(_name(text))
        object.__setattr__(self, "allow", tuple(self.allow))
        object.__setattr__(self, "_names", frozenset(names))
        object.__setattr__(self, "_networks", tuple(networks))

    def naming(self, *urls: str | None) -> Addresses:
        """The same for somebody whose own entry has these URLs."""
        hosts = [host for url in urls if url and (host := plain(host_of(url)))] if self.trusts_entries else []
        return replace(self, written=(*self.written, *hosts)) if hosts else self

    def joined(self, other: Addresses) -> Addresses:
        """What either allows."""
        if other in (self, PUBLIC):
            return self
        return Addresses(
            tuple(dict.fromkeys((*self.allow, *other.allow))),
            tuple(dict.fromkeys((*self.written, *other.written))),
            other.lookup or self.lookup,
            self.trusts_entries and other.trusts_entries,
        )

    def objection(self, host: str, ip: IP) -> Kind | None:
        """What is the matter with connecting to `host` at `ip`; None where it may be."""
        kind = kind_of(ip)
        if kind is None or self._allows(plain(host), ip, kind):
            return None
        return kind

    def _allows(self, host: str, ip: IP, kind: Kind) -> bool:
        if kind.name == METADATA:
            return any(network.num_addresses == 1 and ip in network for network in self._networks)
        return self.names(host) or self._has(ip, kind) or self._is_own(host, ip, kind)

    def names(self, host: str) -> bool:
        """Whether the name is allowed, wherever it leads."""
        if host in self._names:
            return True
        labels = host.split(".")
        return any("*." + ".".join(labels[at:]) in self._names for at in range(1, len(labels)))

    def _has(self, ip: IP, kind: Kind) -> bool:
        """One that carries another leads there too, so both must be allowed."""
        inside = (each for each in kind.inside if kind_of(each) is not None)
        return all(any(each in network for network in self._networks) for each in (ip, *inside))

    def _is_own(self, host: str, ip: IP, kind: Kind) -> bool:
        """Those that name this machine may name it by any of its names: an issuer at 127.0.0.1 serves localhost."""
        if kind.name == LOOPBACK and _is_here(host):
            return any(map(_is_here, self.written))
        return kind.name in _OWN and host == str(ip) and host in self.written


def host_of(url: str) -> str:
    """The host that a URL names; empty where there is none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def plain(host: str) -> str:
    """One spelling for a host that has several."""
    host = host.lower().rstrip(".")
    try:
        return str(ip_address(host))
    except ValueError:
        return host


def looks_inside(host: str) -> bool:
    """Whether a name is of a kind that nobody has in public: one word, or below what is kept for networks inside."""
    return bool(host) and _network(host) is None and not _is_here(host) and ("." not in host or host.endswith(_INSIDE))


def _is_here(host: str) -> bool:
    """Whether a host is a name or an address of this machine, as it is written."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        kind = kind_of(ip_address(host))
    except ValueError:
        return False
    return kind is not None and kind.name == LOOPBACK


def _network(text: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(text.strip("[]"))
    except ValueError as exc:
        if "/" in text and "://" not in text:
            raise _bad(text, str(exc)) from None
        return None


def _name(text: str) -> str:
    name = text.lower().rstrip(".")
    try:
        name = name if name.isascii() else name.encode("idna").decode("ascii")
    except UnicodeError:
        name = ""
    if not _NAME.fullmatch(name) or name.replace(".", "").isdigit():
        raise _bad(text, "it is neither a host's name nor an address nor a network")
    return name


def _bad(text: str, why: str) -> ConfigError:
    return ConfigError(
        f"{text[:100]!r} cannot be allowed",
        evidence=why,
        fix=f"name hosts without scheme and port, or networks: {_EXAMPLE}",
        code="E-CONFIG-KEY",
    )


PUBLIC: Final = Addresses()  # and no others
ANYWHERE: Final = Addresses(("0.0.0.0/0", "::/0"))  # for what the user of this machine names by himself
