"""What an address is: of the public internet, or of somewhere inside. Pure.

The tables are ours because `ipaddress` does not look into an address that carries another one (it calls
64:ff9b::7f00:1 and 2002:7f00:1:: global, and both can lead to 127.0.0.1), nor at the addresses where clouds hand out
credentials, some of which are public; and because what it says has changed between versions of Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final, NamedTuple

IP = IPv4Address | IPv6Address

LOOPBACK: Final = "loopback"
PRIVATE: Final = "private"
SHARED: Final = "shared (CGNAT)"
METADATA: Final = "cloud metadata"
EMBEDDED: Final = "embedded"

#: Where clouds tell a machine its own credentials, or take orders about it. Some are public addresses.
_METADATA: Final = frozenset(
    map(
        ip_address,
        (
            "169.254.169.254",  # nearly all of them
            *("169.254.170.2", "169.254.170.23", "fd00:ec2::23", "fd00:ec2::254"),  # AWS: tasks, pods, IPv6
            "168.63.129.16",  # Azure
            "fd20:ce::254",  # Google, IPv6
            "100.100.100.200",  # Alibaba
            "192.0.0.192",  # Oracle
            *("169.254.42.42", "fd00:42::42"),  # Scaleway
        ),
    )
)
_V4: Final = [
    (IPv4Network(network), kind)
    for network, kind in (
        ("0.0.0.0/32", LOOPBACK),  # connecting to it reaches this machine
        ("0.0.0.0/8", "reserved"),
        ("10.0.0.0/8", PRIVATE),
        ("100.64.0.0/10", SHARED),
        ("127.0.0.0/8", LOOPBACK),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", PRIVATE),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "documentation"),
        ("192.88.99.0/24", "6to4 relay"),
        ("192.168.0.0/16", PRIVATE),
        ("198.18.0.0/15", "benchmarking"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),  # and broadcast
    )
]
_V6: Final = [
    (IPv6Network(network), kind)
    for network, kind in (
        ("::/128", LOOPBACK),
        ("::1/128", LOOPBACK),
        ("fc00::/7", PRIVATE),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "site-local"),
        ("ff00::/8", "multicast"),
        ("2001:db8::/32", "documentation"),
        ("3fff::/20", "documentation"),
        ("2001::/23", "reserved"),  # Teredo is in it
    )
]
_GLOBAL: Final = IPv6Network("2000::/3")  # all that is given out; the rest is reserved
_MAPPED: Final = IPv6Network("::ffff:0:0/96")
_COMPATIBLE: Final = IPv6Network("::/96")
_TRANSLATED: Final = IPv6Network("::ffff:0:0:0/96")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_NAT64_LOCAL: Final = IPv6Network("64:ff9b:1::/48")
_6TO4: Final = IPv6Network("2002::/16")
_TEREDO: Final = IPv6Network("2001::/32")
_ISATAP: Final = frozenset({0x00005EFE, 0x02005EFE})  # the first half of an interface's identifier


class Kind(NamedTuple):
    """What is the matter with an address."""

    name: str
    inside: tuple[IPv4Address, ...] = ()  # what it carries, and may lead to
    form: str = ""  # in which it carries them

    def __str__(self) -> str:
        form = f"the {self.form} form of {' and '.join(map(str, self.inside))}" if self.inside else ""
        if self.name == METADATA:
            return f"{form}, an address of cloud metadata" if form else "an address of cloud metadata"
        return form or f"a {self.name} address"


def check(ip: IP | str) -> str | None:
    """Why nobody is connected to `ip` without the operator's word; None where it is a public address.

    >>> check("64:ff9b::127.0.0.1")
    'the NAT64 form of 127.0.0.1'
    >>> check("93.184.216.34")
    """
    kind = kind_of(ip_address(ip) if isinstance(ip, str) else ip)
    return str(kind) if kind is not None else None


@lru_cache(1024)  # the same few addresses are asked for whenever a connection is opened
def kind_of(ip: IP) -> Kind | None:
    """None for a public address. An address that carries another is never public: what it leads to is for others to
    say."""
    if isinstance(ip, IPv4Address):
        if ip in _METADATA:
            return Kind(METADATA)
        return next((Kind(kind) for network, kind in _V4 if ip in network), None)
    ip = IPv6Address(int(ip))  # without the name of an interface
    if ip in _METADATA:
        return Kind(METADATA)
    for form, inside in _carried(ip):
        metadata = any(each in _METADATA for each in inside)
        return Kind(METADATA if metadata else EMBEDDED, inside, form)
    found = next((Kind(kind) for network, kind in _V6 if ip in network), None)
    return found or (None if ip in _GLOBAL else Kind("reserved"))


def _carried(ip: IPv6Address) -> Iterator[tuple[str, tuple[IPv4Address, ...]]]:
    """How `ip` carries addresses of IPv4, if it does."""
    bits = int(ip)
    last = _v4(bits)
    if ip in _MAPPED:
        yield "mapped", (last,)
    elif ip in _COMPATIBLE and bits > 0xFFFF:  # below that are ::, ::1 and nothing that is given out
        yield "compatible", (last,)
    elif ip in _TRANSLATED:
        yield "translated", (last,)
    elif ip in _NAT64:
        yield "NAT64", (last,)
    elif ip in _NAT64_LOCAL:
        yield "local NAT64", tuple(_of_local_nat64(bits))
    elif ip in _6TO4:
        yield "6to4", (_v4(bits >> 80),)
    elif ip in _TEREDO:
        yield "Teredo", (_v4(bits >> 64), _v4(~bits))
    elif (bits >> 32) & 0xFFFFFFFF in _ISATAP:
        yield "ISATAP", (last,)


def _of_local_nat64(bits: int) -> Iterator[IPv4Address]:
    """RFC 6052 has a place for each length of prefix, and an address does not tell the length of its own: what could be
    one is one. Octet 8 is always zero and lies in between."""
    squeezed = (bits >> 64 << 56) | (bits & 0xFFFFFFFFFFFFFF)  # without octet 8
    for reading in (_v4(bits), _v4(squeezed >> 40), _v4(squeezed >> 32), _v4(squeezed >> 24)):
        if int(reading) >> 24:
            yield reading


def _v4(bits: int) -> IPv4Address:
    return IPv4Address(bits & 0xFFFFFFFF)
