"""Classes of IP addresses: public, or one of several non-public classes. No I/O.

Toolway has its own tables because `ipaddress` does not inspect an address that embeds another one: it calls
64:ff9b::7f00:1 and 2002:7f00:1:: global, although both can reach 127.0.0.1. Nor does it know the clouds' metadata
addresses, some of which are public. And its results have changed between Python versions.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final, NamedTuple

IPAddress = IPv4Address | IPv6Address

LOOPBACK: Final = "loopback"
PRIVATE: Final = "private"
CGNAT: Final = "shared (CGNAT)"
CLOUD_METADATA: Final = "cloud metadata"
EMBEDDED: Final = "embedded"

#: Addresses at which clouds serve a machine's own credentials or accept commands for it. Some are public addresses.
_METADATA_ADDRESSES: Final = frozenset(
    map(
        ip_address,
        (
            "169.254.169.254",  # nearly all clouds
            *("169.254.170.2", "169.254.170.23", "fd00:ec2::23", "fd00:ec2::254"),  # AWS: tasks, pods, IPv6
            "168.63.129.16",  # Azure
            "fd20:ce::254",  # Google, IPv6
            "100.100.100.200",  # Alibaba
            "192.0.0.192",  # Oracle
            *("169.254.42.42", "fd00:42::42"),  # Scaleway
        ),
    )
)
_V4_CLASSES: Final = [
    (IPv4Network(network), kind)
    for network, kind in (
        ("0.0.0.0/32", LOOPBACK),  # a connection to it reaches this machine
        ("0.0.0.0/8", "reserved"),
        ("10.0.0.0/8", PRIVATE),
        ("100.64.0.0/10", CGNAT),
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
        ("240.0.0.0/4", "reserved"),  # includes broadcast
    )
]
_V6_CLASSES: Final = [
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
        ("2001::/23", "reserved"),  # includes Teredo
    )
]
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")  # all allocated addresses; the rest is reserved
_MAPPED: Final = IPv6Network("::ffff:0:0/96")
_COMPATIBLE: Final = IPv6Network("::/96")
_TRANSLATED: Final = IPv6Network("::ffff:0:0:0/96")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_NAT64_LOCAL: Final = IPv6Network("64:ff9b:1::/48")
_6TO4: Final = IPv6Network("2002::/16")
_TEREDO: Final = IPv6Network("2001::/32")
_ISATAP: Final = frozenset({0x00005EFE, 0x02005EFE})  # the first half of an interface identifier


class AddressClass(NamedTuple):
    """The class of a non-public IP address, with the IPv4 addresses embedded in an IPv6 address."""

    name: str
    embedded: tuple[IPv4Address, ...] = ()  # embedded addresses, which it may reach
    encoding: str = ""  # the encoding that embeds them

    def __str__(self) -> str:
        encoding_text = f"the {self.encoding} form of {' and '.join(map(str, self.embedded))}" if self.embedded else ""
        if self.name == CLOUD_METADATA:
            return f"{encoding_text}, a cloud metadata address" if encoding_text else "a cloud metadata address"
        return encoding_text or f"a {self.name} address"


def private_reason(ip: IPAddress | str) -> str | None:
    """Return why a connection to `ip` needs the administrator's permission, or None if `ip` is public.

    >>> private_reason("64:ff9b::127.0.0.1")
    'the NAT64 form of 127.0.0.1'
    >>> private_reason("93.184.216.34")
    """
    address_class = classify_address(ip_address(ip) if isinstance(ip, str) else ip)
    return str(address_class) if address_class is not None else None


@lru_cache(1024)  # the same few addresses are classified for every new connection
def classify_address(ip: IPAddress) -> AddressClass | None:
    """Return the class of a non-public IP address, such as loopback, or None if `ip` is public.

    An IPv6 address that embeds an IPv4 address is never public.
    """
    if isinstance(ip, IPv4Address):
        if ip in _METADATA_ADDRESSES:
            return AddressClass(CLOUD_METADATA)
        return next((AddressClass(kind) for network, kind in _V4_CLASSES if ip in network), None)
    ip = IPv6Address(int(ip))  # without its zone
    if ip in _METADATA_ADDRESSES:
        return AddressClass(CLOUD_METADATA)
    for encoding, embedded in _embedded_ipv4(ip):
        metadata = any(each in _METADATA_ADDRESSES for each in embedded)
        return AddressClass(CLOUD_METADATA if metadata else EMBEDDED, embedded, encoding)
    found = next((AddressClass(kind) for network, kind in _V6_CLASSES if ip in network), None)
    return found or (None if ip in _GLOBAL_UNICAST else AddressClass("reserved"))


def _embedded_ipv4(ip: IPv6Address) -> Iterator[tuple[str, tuple[IPv4Address, ...]]]:
    """Yield the encoding (such as NAT64) of `ip` and the IPv4 addresses it embeds, if any."""
    bits = int(ip)
    last = _low_ipv4(bits)
    if ip in _MAPPED:
        yield "mapped", (last,)
    elif ip in _COMPATIBLE and bits > 0xFFFF:  # lower values are ::, ::1 and unallocated
        yield "compatible", (last,)
    elif ip in _TRANSLATED:
        yield "translated", (last,)
    elif ip in _NAT64:
        yield "NAT64", (last,)
    elif ip in _NAT64_LOCAL:
        yield "local NAT64", tuple(_local_nat64_candidates(bits))
    elif ip in _6TO4:
        yield "6to4", (_low_ipv4(bits >> 80),)
    elif ip in _TEREDO:
        yield "Teredo", (_low_ipv4(bits >> 64), _low_ipv4(~bits))
    elif (bits >> 32) & 0xFFFFFFFF in _ISATAP:
        yield "ISATAP", (last,)


def _local_nat64_candidates(bits: int) -> Iterator[IPv4Address]:
    """Yield every IPv4 address that a local NAT64 address (64:ff9b:1::/48) may embed.

    RFC 6052 has one position per prefix length, and an address does not show its prefix length, so every candidate
    counts. Octet 8 is always zero and is skipped.
    """
    without_octet_8 = (bits >> 64 << 56) | (bits & 0xFFFFFFFFFFFFFF)  # without octet 8
    for candidate in (
        _low_ipv4(bits),
        _low_ipv4(without_octet_8 >> 40),
        _low_ipv4(without_octet_8 >> 32),
        _low_ipv4(without_octet_8 >> 24),
    ):
        if int(candidate) >> 24:
            yield candidate


def _low_ipv4(bits: int) -> IPv4Address:
    return IPv4Address(bits & 0xFFFFFFFF)
