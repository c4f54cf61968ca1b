"""Whom the operator allowed, and how little follows from it."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

import pytest

from toolway import ConfigError, NetworkPolicy
from toolway.config.schema import OAuth, Server
from toolway.network import PUBLIC_ONLY


def allowed(policy: NetworkPolicy, host: str, ip: str) -> bool:
    return policy.check(host, ip_address(ip)) is None


def test_public_addresses_are_allowed() -> None:
    assert allowed(PUBLIC_ONLY, "docs.example", "93.184.216.34")
    assert not allowed(PUBLIC_ONLY, "docs.example", "10.0.0.1")


@pytest.mark.parametrize("host", ["jira.corp.example", "JIRA.corp.example", "jira.corp.example."])
def test_allowed_name_may_resolve_to_any_address(host: str) -> None:
    policy = NetworkPolicy(("Jira.Corp.Example",))
    assert allowed(policy, host, "10.0.0.1") and allowed(policy, host, "127.0.0.1") and allowed(policy, host, "fd00::1")


@pytest.mark.parametrize("host", ["xjira.corp.example", "a.jira.corp.example", "corp.example", "10.0.0.1"])
def test_other_names_are_not_allowed(host: str) -> None:
    assert not allowed(NetworkPolicy(("jira.corp.example",)), host, "10.0.0.1")


def test_wildcard_matches_subdomains_only() -> None:
    policy = NetworkPolicy(("*.corp.example",))
    assert allowed(policy, "a.corp.example", "10.0.0.1") and allowed(policy, "a.b.corp.example", "10.0.0.1")
    assert not allowed(policy, "corp.example", "10.0.0.1")
    assert not allowed(policy, "evilcorp.example", "10.0.0.1")


def test_allowed_network_applies_to_every_name() -> None:
    policy = NetworkPolicy(("10.0.0.0/8", "fd00::/8"))
    assert allowed(policy, "any.example", "10.1.2.3") and allowed(policy, "any.example", "fd00::1")
    assert not allowed(policy, "any.example", "192.168.0.1") and not allowed(policy, "any.example", "127.0.0.1")


def test_embedded_address_needs_both_networks_allowed() -> None:
    nat64 = "64:ff9b::/96"
    assert allowed(NetworkPolicy((nat64,)), "any.example", "64:ff9b::8.8.8.8")
    assert not allowed(NetworkPolicy((nat64,)), "any.example", "64:ff9b::10.0.0.1")
    assert not allowed(NetworkPolicy(("10.0.0.0/8",)), "any.example", "64:ff9b::10.0.0.1")
    assert allowed(NetworkPolicy((nat64, "10.0.0.0/8")), "any.example", "64:ff9b::10.0.0.1")


METADATA = "169.254.169.254"


@pytest.mark.parametrize(
    "allow", [("cloud.example",), ("169.254.0.0/16",), ("0.0.0.0/0", "::/0"), ("*.example", "169.254.169.254/31")]
)
def test_cloud_metadata_is_not_allowed_by_wider_rules(allow: tuple[str, ...]) -> None:
    assert not allowed(NetworkPolicy(allow), "cloud.example", METADATA)
    assert not allowed(NetworkPolicy(allow), "cloud.example", f"64:ff9b::{METADATA}")


def test_cloud_metadata_is_allowed_by_its_own_address() -> None:
    assert allowed(NetworkPolicy((METADATA,)), METADATA, METADATA)
    assert allowed(NetworkPolicy((METADATA,)), "cloud.example", METADATA)
    assert not allowed(NetworkPolicy((METADATA,)), METADATA, f"::ffff:{METADATA}")


# -- what an entry allows by naming it


@pytest.mark.parametrize(
    ("url", "ip"),
    [
        ("http://127.0.0.1:8000/mcp", "127.0.0.1"),
        ("http://localhost:8000/mcp", "127.0.0.1"),
        ("http://LOCALHOST:8000/mcp", "::1"),
        ("http://dev.localhost/mcp", "127.0.0.1"),
        ("http://[::1]:8000/mcp", "::1"),
        ("http://0.0.0.0:8000/mcp", "0.0.0.0"),
        ("http://10.0.0.5/mcp", "10.0.0.5"),
        ("http://100.101.102.103/mcp", "100.101.102.103"),
        ("http://[FD00:0::5]/mcp", "fd00::5"),
    ],
)
def test_entry_allows_its_own_local_address(url: str, ip: str) -> None:
    assert allowed(Server(url=url).effective_network_policy, urlsplit(url).hostname or "", ip)


@pytest.mark.parametrize(
    ("url", "host", "ip"),
    [
        ("http://localhost/mcp", "localhost", "10.0.0.1"),  # a name is this machine only where it leads here
        ("http://10.0.0.5/mcp", "10.0.0.6", "10.0.0.6"),
        ("http://10.0.0.5/mcp", "any.example", "10.0.0.5"),
        ("http://10.0.0.5/mcp", "localhost", "127.0.0.1"),
        ("http://jira.corp.example/mcp", "jira.corp.example", "10.0.0.5"),
        ("http://jira.corp.example/mcp", "jira.corp.example", "127.0.0.1"),
        ("http://127.0.0.1/mcp", "any.example", "127.0.0.1"),
        ("http://127.1/mcp", "127.1", "127.0.0.1"),  # no one writes that by accident
        ("http://[::ffff:127.0.0.1]/mcp", "::ffff:127.0.0.1", "::ffff:127.0.0.1"),
        ("http://169.254.1.1/mcp", "169.254.1.1", "169.254.1.1"),
        (f"http://{METADATA}/mcp", METADATA, METADATA),
        ("http://127.0.0.1.example/mcp", "127.0.0.1.example", "127.0.0.1"),
        ("http://xlocalhost/mcp", "xlocalhost", "127.0.0.1"),
    ],
)
def test_entry_allows_no_other_address(url: str, host: str, ip: str) -> None:
    assert not allowed(Server(url=url).effective_network_policy, host, ip)


def test_local_entry_may_use_local_issuer_but_remote_may_not() -> None:
    assert allowed(Server(url="http://localhost:1/mcp").effective_network_policy, "127.0.0.1", "127.0.0.1")
    assert allowed(Server(url="http://127.0.0.1:1/mcp").effective_network_policy, "localhost", "::1")
    assert not allowed(Server(url="https://mcp.example/mcp").effective_network_policy, "localhost", "127.0.0.1")
    named = Server(url="https://mcp.example/mcp", auth=OAuth(issuer="http://localhost:9/"))
    assert allowed(named.effective_network_policy, "localhost", "127.0.0.1")


def test_untrusted_entry_allows_no_address() -> None:
    policy = NetworkPolicy(trusts_entries=False)
    assert not allowed(policy.allowing("http://127.0.0.1/"), "127.0.0.1", "127.0.0.1")
    assert not allowed(
        policy.union(NetworkPolicy(("a.example",))).allowing("http://127.0.0.1/"), "127.0.0.1", "127.0.0.1"
    )


# -- what can be allowed


@pytest.mark.parametrize(
    "text",
    ["", "*", "*.", "https://jira.example", "jira.example:8080", "10.0.0.1/8", "10.0.0.0/33", "a b", "127.1", "-x"],
)
def test_invalid_address_rule_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        NetworkPolicy((text,))
    assert "invalid address rule" in caught.value.message and "10.0.0.0/8" in caught.value.hint


def test_international_names_are_accepted() -> None:
    assert allowed(NetworkPolicy(("bücher.example",)), "xn--bcher-kva.example", "10.0.0.1")


def test_union_allows_both_policies() -> None:
    both = NetworkPolicy(("a.example",)).union(NetworkPolicy(("10.0.0.0/8",)))
    assert allowed(both, "a.example", "127.0.0.1") and allowed(both, "b.example", "10.0.0.1")
    assert both.union(PUBLIC_ONLY) == both and PUBLIC_ONLY.union(both) == both
