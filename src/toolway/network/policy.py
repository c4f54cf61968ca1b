"""The network policy: which non-public hosts and networks may be connected to.

Public addresses are always allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit

from toolway.errors import ConfigError
from toolway.network.address_classes import (
    CGNAT,
    CLOUD_METADATA,
    LOOPBACK,
    PRIVATE,
    AddressClass,
    IPAddress,
    classify_address,
)

#: Resolves a name to addresses as text. It is called in a thread, may block, and raises `OSError`.
Lookup = Callable[[str], Iterable[str]]
#: Address classes that an entry allows by naming them literally: no name server is involved.
_ENTRY_CLASSES: Final = frozenset({LOOPBACK, PRIVATE, CGNAT})
_HOST_PATTERN: Final = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
#: Suffixes that are reserved for internal networks, by standard or by convention.
_INTERNAL_SUFFIXES: Final = (".local", ".internal", ".lan", ".home", ".home.arpa", ".corp", ".intranet", ".private")
_EXAMPLE_RULE: Final = '"toolway": {"addresses": {"allow": ["jira.corp.example", "10.0.0.0/8"]}}'


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """Non-public hosts and networks that may be connected to.

    Cloud metadata is allowed only by its exact address.

    Example:
        Hub("mcp.json", network_policy=NetworkPolicy(("jira.corp.example", "10.0.0.0/8")))
    """

    allow: tuple[str, ...] = ()  # names ("jira.corp.example", "*.corp.example"), addresses and networks ("10.0.0.0/8")
    entry_hosts: tuple[
        str, ...
    ] = ()  # hosts in the entry itself: `localhost`, loopback and private literals are allowed
    lookup: Lookup | None = field(default=None, repr=False)  # replaces the system's name resolution
    trusts_entries: bool = True  # False: an entry allows nothing by naming it, because its author is untrusted
    _names: frozenset[str] = field(default=frozenset(), init=False, repr=False, compare=False)
    _networks: tuple[IPv4Network | IPv6Network, ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.allow:
            return
        names, networks = set(), []
        for text in self.allow:
            network = _parse_network(text)
            if network is not None:
                networks.append(network)
            else:
                names.add(_parse_host_name(text))
        object.__setattr__(self, "allow", tuple(self.allow))
        object.__setattr__(self, "_names", frozenset(names))
        object.__setattr__(self, "_networks", tuple(networks))

    def allowing(self, *urls: str | None) -> NetworkPolicy:
        """Return a policy that also allows localhost and private IP literals named in these URLs.

        The URLs come from a server entry. If `trusts_entries` is False, nothing is added.
        """
        hosts = [host for url in urls if url and (host := canonical_host(host_of(url)))] if self.trusts_entries else []
        return replace(self, entry_hosts=(*self.entry_hosts, *hosts)) if hosts else self

    def union(self, other: NetworkPolicy) -> NetworkPolicy:
        """Return a policy that allows everything that either policy allows."""
        if other in (self, PUBLIC_ONLY):
            return self
        return NetworkPolicy(
            tuple(dict.fromkeys((*self.allow, *other.allow))),
            tuple(dict.fromkeys((*self.entry_hosts, *other.entry_hosts))),
            other.lookup or self.lookup,
            self.trusts_entries and other.trusts_entries,
        )

    def check(self, host: str, ip: IPAddress) -> AddressClass | None:
        """Return the class of `ip` if connecting to `host` at `ip` is denied, or None if allowed.

        The class, such as loopback or private, is the reason for the denial.
        """
        address_class = classify_address(ip)
        if address_class is None or self._allows(canonical_host(host), ip, address_class):
            return None
        return address_class

    def _allows(self, host: str, ip: IPAddress, address_class: AddressClass) -> bool:
        if address_class.name == CLOUD_METADATA:
            return any(network.num_addresses == 1 and ip in network for network in self._networks)
        return (
            self.allows_name(host) or self._allows_ip(ip, address_class) or self._is_from_entry(host, ip, address_class)
        )

    def allows_name(self, host: str) -> bool:
        """Return True if `allow` contains the host name itself or a `*.` pattern that matches it."""
        if host in self._names:
            return True
        labels = host.split(".")
        return any("*." + ".".join(labels[at:]) in self._names for at in range(1, len(labels)))

    def _allows_ip(self, ip: IPAddress, address_class: AddressClass) -> bool:
        """Return True if the allowed networks contain `ip` and every non-public address it embeds."""
        embedded = (each for each in address_class.embedded if classify_address(each) is not None)
        return all(any(each in network for network in self._networks) for each in (ip, *embedded))

    def _is_from_entry(self, host: str, ip: IPAddress, address_class: AddressClass) -> bool:
        """Return True if a URL in the server's entry names this address literally.

        An entry that names this machine may use any of its names: with a URL at 127.0.0.1, localhost is allowed too.
        """
        if address_class.name == LOOPBACK and is_this_machine(host):
            return any(map(is_this_machine, self.entry_hosts))
        return address_class.name in _ENTRY_CLASSES and host == str(ip) and host in self.entry_hosts


def host_of(url: str) -> str:
    """Return the host of a URL, or "" if the URL is invalid or has no host."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def canonical_host(host: str) -> str:
    """Return a host name in lower case without trailing dot, or an IP address in normal form."""
    host = host.lower().rstrip(".")
    try:
        return str(ip_address(host))
    except ValueError:
        return host


def is_private_host(host: str) -> bool:
    """Return True if `host` looks like a name on an internal network.

    Such a name is a single word, or ends with a suffix such as `.local` or `.corp`. IP addresses and localhost do not
    count.
    """
    return (
        bool(host)
        and _parse_network(host) is None
        and not is_this_machine(host)
        and ("." not in host or host.endswith(_INTERNAL_SUFFIXES))
    )


def is_this_machine(host: str) -> bool:
    """Return True if `host` is localhost, a name below it, or a loopback IP address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address_class = classify_address(ip_address(host))
    except ValueError:
        return False
    return address_class is not None and address_class.name == LOOPBACK


def _parse_network(text: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(text.strip("[]"))
    except ValueError as exc:
        if "/" in text and "://" not in text:
            raise _invalid_rule(text, str(exc)) from None
        return None


def _parse_host_name(text: str) -> str:
    name = text.lower().rstrip(".")
    try:
        name = name if name.isascii() else name.encode("idna").decode("ascii")
    except UnicodeError:
        name = ""
    if not _HOST_PATTERN.fullmatch(name) or name.replace(".", "").isdigit():
        raise _invalid_rule(text, "it is not a host name, an address or a network")
    return name


def _invalid_rule(text: str, reason: str) -> ConfigError:
    return ConfigError(
        f"invalid address rule {text[:100]!r}",
        detail=reason,
        hint=f"use host names without scheme and port, or networks: {_EXAMPLE_RULE}",
        code="E-CONFIG-KEY",
    )


PUBLIC_ONLY: Final = NetworkPolicy()  # public addresses only
ALLOW_ALL: Final = NetworkPolicy(("0.0.0.0/0", "::/0"))  # for URLs that the user of this machine enters directly
