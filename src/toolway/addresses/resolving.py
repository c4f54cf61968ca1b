"""From a host to the addresses that may be connected to.

A name is looked up once for a connection, and what was checked is what is connected to: a name server that answers
otherwise a moment later is not asked. It is asked in a thread of its own, one for each name, because one that hangs
must cost only those who ask for that name.
"""

from __future__ import annotations

import asyncio
import json
import socket
from functools import partial
from ipaddress import ip_address
from itertools import chain, zip_longest
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from toolway.addresses.aside import in_thread
from toolway.addresses.kinds import METADATA, Kind, kind_of
from toolway.addresses.policy import Addresses, Lookup

LIMIT: Final = 5.0  # seconds for a look-up
MOST: Final = 8  # addresses of a name that are tried
UNDER_WAY: Final = 256  # look-ups at a time; each is a thread

_Asked = dict[tuple[Lookup, str], "asyncio.Future[list[str]]"]
_asked: WeakKeyDictionary[asyncio.AbstractEventLoop, _Asked] = WeakKeyDictionary()


class Pinned(NamedTuple):
    """An address that was checked, as a socket takes it."""

    family: int
    sockaddr: Any

    @property
    def host(self) -> str:
        return str(self.sockaddr[0])


class AddressError(Exception):
    """A host that is not connected to. Nothing was sent."""

    code = "E-HTTP-ADDRESS"

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.fix = fix


class NameNotFound(AddressError):
    """The name has no address, or nobody told it in time."""

    code = "E-HTTP-DNS"


class AddressRefused(AddressError):
    """The host leads to an address that is not public, and nobody allowed that."""


async def resolve(host: str, port: int, addresses: Addresses, limit: float = LIMIT) -> tuple[Pinned, ...]:
    """The addresses of `host` that may be connected to, in the order in which they should be tried. Raises
    `NameNotFound`, or `AddressRefused` where it has none but forbidden ones."""
    found = numeric(host) or await _look_up(host, addresses.lookup or system_lookup, limit)
    allowed, objections = [], []
    for text in dict.fromkeys(found):
        kind = addresses.objection(host, ip_address(text))
        if kind is None:
            allowed.append(text)
        else:
            objections.append((text, kind))
    if objections and not allowed:
        raise _refused(host, *objections[0])
    if not allowed:
        raise _not_found(host, "it has no address")
    return _in_order([_pinned(text, port) for text in allowed])[:MOST]


def check_literal(host: str, addresses: Addresses) -> None:
    """The same where somebody else will look the name up, such as a proxy: what can be seen without. Raises
    `AddressRefused`."""
    for text in numeric(host):
        kind = addresses.objection(host, ip_address(text))
        if kind is not None:
            raise _refused(host, text, kind)


def numeric(host: str) -> list[str]:
    """The address that `host` spells out, be it as 127.1 or 0x7f000001, without asking anybody."""
    try:
        return system_lookup(host, socket.AI_NUMERICHOST)
    except OSError:
        return []


def system_lookup(host: str, flags: int = 0) -> list[str]:
    """The addresses of a name as this machine resolves it. Blocks; raises `OSError`."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=flags)
    except ValueError as exc:  # a name that cannot be one
        raise OSError(str(exc)) from None
    return [str(sockaddr[0]) for _, _, _, _, sockaddr in found]


async def _look_up(host: str, lookup: Lookup, limit: float) -> list[str]:
    asked = _asked.setdefault(asyncio.get_running_loop(), {})
    waiting = asked.get((lookup, host))
    if waiting is None:
        if len(asked) >= UNDER_WAY:
            raise _not_found(host, "too many names are being looked up; is the name server there?")
        waiting = asked[lookup, host] = in_thread(_listed, lookup, host)
        waiting.add_done_callback(partial(_ended, asked, (lookup, host)))
    try:
        async with asyncio.timeout(limit):
            return await asyncio.shield(waiting)
    except TimeoutError:
        raise _not_found(host, f"no answer of the name server within {limit:g} s") from None
    except (OSError, ValueError) as exc:
        raise _not_found(host, str(exc.args[-1]) if exc.args else type(exc).__name__) from None


def _listed(lookup: Lookup, host: str) -> list[str]:
    """Only what is an address: a resolver from outside is not trusted to return nothing else."""
    return [str(ip_address(text)) for text in lookup(host)]


def _ended(asked: _Asked, key: tuple[Lookup, str], waiting: asyncio.Future[list[str]]) -> None:
    asked.pop(key, None)
    if not waiting.cancelled():
        waiting.exception()  # those who left have not seen it


def _pinned(text: str, port: int) -> Pinned:
    """With the number of the interface, where the address names one."""
    family, _, _, _, sockaddr = socket.getaddrinfo(text, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0]
    return Pinned(family, sockaddr)


def _in_order(found: list[Pinned]) -> tuple[Pinned, ...]:
    """Families in turn, so that one that does not work costs one attempt."""
    first = [each for each in found if each.family == found[0].family]
    other = [each for each in found if each.family != found[0].family]
    return tuple(each for each in chain.from_iterable(zip_longest(first, other)) if each is not None)


def _not_found(host: str, why: str) -> NameNotFound:
    fix = "check the host in the url, and the network's name server"
    return NameNotFound(f"the name {host} was not found ({why})", fix)


def _refused(host: str, ip: str, kind: Kind) -> AddressRefused:
    where = host if host == ip else f"{host} leads to {ip}, which"
    wanted = [host]
    if kind.name == METADATA:
        wanted = [ip]
    elif numeric(host):
        wanted = [ip, *(str(each) for each in kind.inside if kind_of(each) is not None)]
    allow = json.dumps({"toolway": {"addresses": {"allow": wanted}}})[1:-1]
    return AddressRefused(
        f"{where} is {kind}; such addresses are not connected to",
        f"if you mean it, allow it in the file of servers: {allow}",
    )
