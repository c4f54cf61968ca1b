"""Decides whether a gateway is public, and which defaults follow from that.

A gateway that only its owner uses may be lenient: a changed definition is only noted, and packages run without a lock.
One that serves other users is strict. `public_reason` alone decides which kind a gateway is. A gateway on loopback is
public too if its settings give it a host name, because then a proxy passes requests on to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, cast
from urllib.parse import urlsplit

from toolway.part_api import registry

if TYPE_CHECKING:
    from toolway.config.schema import DefaultSandbox
    from toolway.config.settings import GatewaySettings

LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class GatewayRules:
    """What a gateway requires of its servers: what its settings say, and defaults for the rest."""

    public_reason: str  # why the gateway is public, as readable text; "" if only its machine uses it
    pin_mode: Literal["warn", "hold", "review"]  # of changed definitions
    required_guards: frozenset[str]  # parts whose start guards must know what runs, such as a lock of packages
    default_sandbox: DefaultSandbox  # of server entries that name none


def find_rules(settings: GatewaySettings, listens_on: str = "", *, in_cluster: bool = False) -> GatewayRules:
    """Return the rules for a gateway with these settings.

    `listens_on` is its address if that differs from the settings. A cluster's nodes share one configuration, but each
    has its own address. They all count as public, so they all behave the same.
    """
    reason = public_reason(settings, listens_on, in_cluster=in_cluster)
    default_pins = "hold" if reason else "warn"
    default_sandbox: DefaultSandbox = "guard-if-possible" if reason and not settings.sandbox else "auto"
    return GatewayRules(
        reason,
        cast("Literal['warn', 'hold', 'review']", settings.pins or default_pins),
        frozenset(
            part.name
            for part in registry.guarding()
            if part.requires_guard(settings.parts.get(part.name), is_public=bool(reason))
        ),
        "guard" if settings.sandbox == "guard" else default_sandbox,
    )


def public_reason(settings: GatewaySettings, listens_on: str = "", *, in_cluster: bool = False) -> str:
    """Return why a gateway is public, as readable text, or "" if only users on its machine can reach it."""
    address = listens_on or settings.host
    if not is_loopback_host(address):
        return f"it listens on {address}"
    for each in settings.implied():
        if each.public_reason:
            return each.public_reason
    for host in settings.hosts:
        if not is_loopback_host(host):
            return f"toolway.gateway.hosts names {host}"
    if settings.url and not is_loopback_host(urlsplit(settings.url).hostname or ""):
        return f"toolway.gateway.url is {settings.url}"
    return "it is a node of a cluster" if in_cluster else ""


def is_loopback_host(host: str) -> bool:
    """Return True if only this machine can reach the host name or IP address. 0.0.0.0 means all addresses."""
    name = host.lower().removeprefix("[").removesuffix("]")
    if name in LOOPBACK_NAMES:
        return True
    from ipaddress import ip_address

    try:
        address = ip_address(name)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
