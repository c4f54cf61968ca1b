"""What the `toolway` block of a file says about addresses: hosts and networks that are not public, and are meant.

"toolway": {"addresses": {"allow": ["jira.corp.example", "*.lab.example", "10.0.0.0/8"]}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from toolway.addresses.policy import PUBLIC, Addresses, host_of, looks_inside, plain
from toolway.config.fields import Fields, wrong
from toolway.config.problems import Problem
from toolway.config.spec import Server


def read_addresses(block: Any, variables: Mapping[str, str]) -> Addresses:
    """The addresses that a `toolway` block allows. Raises `ConfigError`."""
    value = block.get("addresses") if isinstance(block, Mapping) else None
    if value is None:
        return PUBLIC
    if not isinstance(value, Mapping):
        raise wrong("toolway.addresses", "an object", value)
    fields = Fields(value, variables)
    found = Addresses(fields.texts("allow"))
    fields.nothing_left("toolway.addresses", "allow")
    return found


def allowing(server: Server, addresses: Addresses) -> Server:
    """The server with what is allowed beside its own. One without an address needs nothing of it."""
    if addresses == PUBLIC or server.command is not None or server.instance is not None:
        return server
    return replace(server, addresses=server.addresses.joined(addresses))


def names_inside(servers: Mapping[str, Mapping[str, Any]], addresses: Addresses) -> list[Problem]:
    """What is to be said of entries whose host looks like a name inside, as nobody can know without asking."""
    found = []
    for name, entry in servers.items():
        host = plain(host_of(str(entry.get("url") or "")))
        if looks_inside(host) and not addresses.names(host):
            allow = json.dumps({"toolway": {"addresses": {"allow": [host]}}})[1:-1]
            found.append(
                Problem(
                    name,
                    f"{host} looks like a name inside your network",
                    evidence="such addresses are connected to when you allow it",
                    fix=f"add to the file: {allow}",
                    code="E-HTTP-ADDRESS",
                    severity="warning",
                )
            )
    return found
