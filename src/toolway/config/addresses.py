"""What the `toolway` block of a file says about addresses: hosts and networks that are not public, and are meant.

"toolway": {"addresses": {"allow": ["jira.corp.example", "*.lab.example", "10.0.0.0/8"]}}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from toolway.addresses.policy import PUBLIC, Addresses
from toolway.config.fields import KEY, Fields, wrong
from toolway.config.spec import Server
from toolway.errors import ConfigError


def read_addresses(block: Any, variables: Mapping[str, str]) -> Addresses:
    """The addresses that a `toolway` block allows. Raises `ConfigError`."""
    value = block.get("addresses") if isinstance(block, Mapping) else None
    if value is None:
        return PUBLIC
    if not isinstance(value, Mapping):
        raise wrong("toolway.addresses", "an object", value)
    fields = Fields(value, variables)
    found = Addresses(fields.texts("allow"))
    if fields.rest:
        evidence = ", ".join(sorted(fields.rest))[:200]
        raise ConfigError(
            "toolway.addresses has a key that is not known", evidence=evidence, fix="it has allow", code=KEY
        )
    return found


def allowing(server: Server, addresses: Addresses) -> Server:
    """The server with what is allowed beside its own. One without an address needs nothing of it."""
    if addresses == PUBLIC or server.command is not None or server.instance is not None:
        return server
    return replace(server, addresses=server.addresses.joined(addresses))
