"""Where the other nodes reach this one by HTTP, where nobody said so: on the network on which all reach NATS, or the
database while NATS has no address.

A gateway that listens on its own machine alone is reached by nobody whose NATS is elsewhere, so it is called over NATS:
a laptop that lends its servers needs no option for that.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from toolway.gateway.replica import parsing
from toolway.gateway.replica.options import ClusterOptions

_ANY_PORT: Final = 9  # nothing is sent there
_ANY: Final = frozenset({"", "0.0.0.0", "::"})


def address_of(options: ClusterOptions, host: str, port: int, *, tls: bool) -> str:
    """The address of a gateway that listens at `host` and `port`; "" = over NATS alone. It may ask the name server, so
    call it in a thread. Raises `ConfigError`."""
    if options.advertise is not None:
        return options.advertise
    found = _reached_at(host, (*options.nats, options.database))
    if found and tls and _is_number(found):
        raise parsing.wrong(
            "others cannot check the certificate of a gateway that they know by a number",
            f"it listens with TLS at {found}",
            f"name it as its certificate does: --advertise https://NAME:{port}",
        )
    return f"{'https' if tls else 'http'}://{f'[{found}]' if ':' in found else found}:{port}" if found else ""


def _reached_at(host: str, engines: Sequence[str]) -> str:
    if host not in _ANY and not _is_loopback(host):
        return host
    own = _own_number(engines)
    if host in _ANY:
        return own
    return host if _is_loopback(own) else ""


def _own_number(engines: Sequence[str]) -> str:
    """Our own address on the way to one of these. The socket is told where it would send to, and nothing is sent."""
    for name in filter(None, (urlsplit(address).hostname for address in engines)):
        with suppress(OSError, UnicodeError):
            for family, kind, protocol, _, target in socket.getaddrinfo(name, _ANY_PORT, type=socket.SOCK_DGRAM):
                with suppress(OSError), socket.socket(family, kind, protocol) as probe:
                    probe.connect(target)
                    return str(probe.getsockname()[0])
    raise parsing.wrong(
        "it cannot be found out where other gateways reach this one",
        "neither a NATS of --cluster nor the database has an address that can be reached",
        f"say it: --advertise http://HOST:8765, or --advertise {parsing.NONE} where they cannot",
    )


def _is_number(host: str) -> bool:
    with suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
