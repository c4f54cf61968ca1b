"""Every way to spell an address that leads inside."""

from __future__ import annotations

import ipaddress
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolway.network.address_classes import CLOUD_METADATA, classify_address, private_reason

INSIDE = {
    "loopback": ("127.0.0.1", "127.255.255.254", "0.0.0.0", "::1", "::"),
    "private": ("10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.1.1", "fc00::1", "fdff::1"),
    "link-local": ("169.254.0.1", "169.254.255.255", "fe80::1", "febf::1", "fe80::1%1"),
    "CGNAT": ("100.64.0.0", "100.127.255.255"),
    "multicast": ("224.0.0.1", "239.255.255.250", "ff02::1", "ff0e::1"),
    "reserved": ("0.0.0.1", "192.0.0.1", "240.0.0.1", "255.255.255.255", "100::1", "4000::1", "5f00::1", "2001:20::1"),
    "documentation": ("192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1", "3fff::1"),
    "benchmarking": ("198.18.0.1", "198.19.255.255"),
    "6to4 relay": ("192.88.99.1",),
    "site-local": ("fec0::1", "feff::1"),
    "cloud metadata": (
        *("169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
        *("fd00:ec2::254", "fd20:ce::254", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe"),
    ),
    "mapped form of 10.0.0.1": ("::ffff:10.0.0.1", "::ffff:a00:1"),
    "compatible form of 127.0.0.1": ("::127.0.0.1", "::7f00:1"),
    "translated form of 127.0.0.1": ("::ffff:0:127.0.0.1",),
    "NAT64 form of 127.0.0.1": ("64:ff9b::127.0.0.1", "64:ff9b::7f00:1"),
    "local NAT64 form of 10.1.2.3": (
        *("64:ff9b:1::10.1.2.3", "64:ff9b:1:a01:2:300::"),  # prefixes of 96 and 48 bits
        "64:ff9b:1:0a:1:203::",  # and of 56
    ),
    "and 10.1.2.3": ("64:ff9b:1:0:a:102:300::",),  # and of 64, which could be another of 96
    "6to4 form of 192.168.0.1": ("2002:c0a8:1::", "2002:c0a8:1::1"),
    "Teredo form of 10.0.0.1 and 127.0.0.1": ("2001:0:a00:1:0:0:80ff:fffe",),
    "ISATAP form of 10.0.0.1": ("2606:4700::5efe:a00:1", "2606:4700::200:5efe:10.0.0.1"),
}
PUBLIC = (
    *(
        "1.1.1.1",
        "8.8.8.8",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "172.15.255.255",
        "172.32.0.0",
    ),
    *("126.255.255.255", "128.0.0.0", "169.253.255.255", "192.167.255.255", "192.169.0.0", "223.255.255.255"),
    *("2606:4700::1111", "2001:4860:4860::8888", "2a00:1450::1", "2400::1", "2001:200::1", "3ffe::1"),
)


@pytest.mark.parametrize(("said", "address"), [(said, each) for said, all_ in INSIDE.items() for each in all_])
def test_private_address_gets_its_reason(said: str, address: str) -> None:
    assert said in (private_reason(address) or "")


@pytest.mark.parametrize("address", PUBLIC)
def test_public_address_has_no_reason(address: str) -> None:
    assert private_reason(address) is None


v4 = st.integers(0, 2**32 - 1)
v6 = st.integers(0, 2**128 - 1)
rest = st.integers(0, 2**64 - 1)


@given(v4)
def test_non_global_ipv4_is_never_public(bits: int) -> None:
    ip = IPv4Address(bits)
    assert classify_address(ip) is not None or (ip.is_global and not ip.is_multicast)


@given(v6)
def test_non_global_ipv6_is_never_public(bits: int) -> None:
    ip = IPv6Address(bits)
    assert classify_address(ip) is not None or (ip.is_global and not ip.is_multicast)


@given(v4, rest)
def test_embedded_ipv4_address_is_always_found(bits: int, more: int) -> None:
    """Whatever it carries, public or not, and whatever stands in the other bits."""
    low = more & 0xFFFFFFFF
    forms = (
        (0xFFFF << 32) | bits,  # mapped
        (0x64FF9B << 96) | bits,  # NAT64
        (0x64FF9B0001 << 80) | ((more & 0xFFFF) << 64) | bits,  # local NAT64
        (0x2002 << 112) | (bits << 80) | more,  # 6to4
        (0x20010000 << 96) | (low << 64) | ((more >> 32) << 32) | (bits ^ 0xFFFFFFFF),  # Teredo's client
        (0x20010000 << 96) | (bits << 64) | more,  # Teredo's server
        (0x2606 << 112) | (more >> 16 << 64) | (0x5EFE << 32) | bits,  # ISATAP
        (0x2606 << 112) | (more >> 16 << 64) | (0x02005EFE << 32) | bits,
    )
    for form in forms:
        kind = classify_address(IPv6Address(form))
        assert kind is not None
        nowhere = kind.encoding == "local NAT64" and not bits >> 24
        assert nowhere or IPv4Address(bits) in kind.embedded, IPv6Address(form)


@given(v4)
def test_metadata_address_is_found_in_every_form(bits: int) -> None:
    target = int(IPv4Address("169.254.169.254"))
    for form in ((0xFFFF << 32) | target, (0x64FF9B << 96) | target, (0x2002 << 112) | (target << 80) | bits):
        kind = classify_address(IPv6Address(form))
        assert kind is not None and kind.name == CLOUD_METADATA


def test_ipaddress_module_alone_misses_addresses() -> None:
    """Why there is our own table (advisory CVE-2026-79749): where Python learns of these, look at it again."""
    fooled = [a for a in ("64:ff9b::7f00:1", "168.63.129.16") if ipaddress.ip_address(a).is_global]
    assert fooled == ["64:ff9b::7f00:1", "168.63.129.16"]
    assert all(private_reason(address) for address in fooled)
