"""What the address matrix is made of: every form of an address that leads inside, a resolver from outside, a public
internet of one address, and a list of all that any socket was told to connect to."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from toolway import NetworkPolicy

HOME = "127.0.0.1"  # stands for the public internet: the only address that everybody may go to
PORT = 9  # of everything else
FORMS = {
    "loopback": ("127.0.0.2", "::1", "0.0.0.0", "::"),
    "private": ("10.0.0.1", "172.16.0.1", "192.168.0.1", "fd00::1"),
    "link-local": ("169.254.1.1", "fe80::1"),
    "metadata": ("169.254.169.254", "168.63.129.16", "100.100.100.200", "fd00:ec2::254"),
    "CGNAT": ("100.64.0.1",),
    "multicast": ("224.0.0.1", "ff02::1"),
    "reserved": (
        "0.0.0.1",
        "192.0.0.1",
        "192.0.2.1",
        "198.18.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "100::1",
        "4000::1",
    ),
    "mapped": ("::ffff:10.0.0.1", "::ffff:127.0.0.1", "::ffff:169.254.169.254"),
    "compatible": ("::10.0.0.1",),
    "translated": ("::ffff:0:10.0.0.1",),
    "NAT64": ("64:ff9b::10.0.0.1", "64:ff9b::127.0.0.1", "64:ff9b::169.254.169.254", "64:ff9b:1::10.0.0.1"),
    "6to4": ("2002:a00:1::", "2002:7f00:1::1"),
    "Teredo": ("2001:0:a00:1:0:0:80ff:fffe", "2001:0:808:808:0:0:f5ff:fffe"),
    "ISATAP": ("2606:4700::5efe:10.0.0.1", "2606:4700::200:5efe:10.0.0.1"),
    "site-local": ("fec0::1",),
}
#: Spellings of 10.0.0.1 and 127.0.0.2 that are not names: whoever opens sockets understands them.
ODD = {
    "0x0a000001": "10.0.0.1",
    "167772161": "10.0.0.1",
    "012.0.0.1": "10.0.0.1",
    "10.1": "10.0.0.1",
    "127.2": "127.0.0.2",
}


@dataclass(frozen=True)
class Cell:
    """One way to name one address."""

    number: int
    kind: str
    host: str  # as it stands in a URL
    address: str

    @property
    def named(self) -> bool:
        return self.host.endswith(".example")

    def url(self, path: str = "", scheme: str = "http") -> str:
        return f"{scheme}://{self.host}:{PORT}{path}"


def cells() -> list[Cell]:
    """Each form behind a name, and spelt out."""
    named = [(kind, f"{kind}-{n}.example".lower(), each) for kind, all_ in FORMS.items() for n, each in enumerate(all_)]
    spelt = [(kind, f"[{a}]" if ":" in a else a, a) for kind, all_ in FORMS.items() for a in all_]
    odd = [("odd", host, address) for host, address in ODD.items()]
    return [Cell(number, *each) for number, each in enumerate([*named, *spelt, *odd])]


@dataclass(eq=False)
class Names:
    """The resolver: `HOME` for every name that it does not know."""

    known: dict[str, list[str]] = field(default_factory=dict)  # the next answer is taken; the last one stays
    asked: list[str] = field(default_factory=list)

    def __call__(self, host: str) -> Iterable[str]:
        self.asked.append(host)
        answers = self.known.get(host)
        if answers is None:
            return [HOME]
        return [answers.pop(0) if len(answers) > 1 else answers[0]]

    def policy(self, *allow: str) -> NetworkPolicy:
        """No one's entry means anything by naming it, as for what comes by way of `/admin`."""
        return NetworkPolicy((HOME, *allow), lookup=self, trusts_entries=False)


def names_of(chosen: Iterable[Cell]) -> Names:
    return Names({each.host: [each.address] for each in chosen})


#: All addresses, those of metadata by name: what an operator would write who wants none of this.
EVERYTHING = (
    "0.0.0.0/0",
    "::/0",
    *(a for a in (*FORMS["metadata"], "::ffff:169.254.169.254", "64:ff9b::169.254.169.254")),
)

# -- what sockets were told to do

_seen: list[tuple[str, int]] | None = None


def _watch(event: str, args: tuple[Any, ...]) -> None:
    """An audit hook cannot be taken out, nor be gone around by any Python code. Whoever would be connected to is seen
    here, and then is not."""
    if event != "socket.connect" or _seen is None or not isinstance(args[1], tuple):
        return
    host, port = args[1][:2]
    _seen.append((host, port))
    if host != HOME:
        raise OSError(errno.ENETUNREACH, "not in a test")


sys.addaudithook(_watch)


@contextlib.contextmanager
def connects() -> Iterator[list[tuple[str, int]]]:
    """All that any socket of this process is told to connect to in the meantime."""
    global _seen
    found: list[tuple[str, int]] = []
    _seen = found
    try:
        yield found
    finally:
        _seen = None


def plain(address: str) -> str:
    """As `connects` has it."""
    return str(ipaddress.ip_address(address))
