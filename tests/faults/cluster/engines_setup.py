"""Where the parts of a cluster stand: on one loopback, or each replica in its own network namespace.

In namespaces each part has an address, so the way between any two can be cut: what is sent leaves and reaches
nobody, nobody is told, and connections that were open stay open. It takes root and the program `ip`, and nothing else:
packets go out to a neighbour that does not exist, and those that come in meet a rule that drops them.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

NOBODY: Final = "02:00:00:00:00:01"  # the address of a network card that no machine has
NATS: Final = ("nats-0", "nats-1", "nats-2")
POSTGRES: Final = "postgres"
_numbers = itertools.count()


@dataclass(frozen=True)
class Seat:
    """Where one part stands."""

    name: str
    host: str
    inside: tuple[str, ...] = ()  # words before a command that shall run there


class Ground(Protocol):
    def seat(self, name: str) -> Seat: ...

    def cut(self, replica: str, other: str) -> None:
        """Nothing passes between a replica and another part from now on."""
        ...

    def mend(self) -> None:
        """Undo every cut."""
        ...


class Loopback:
    def seat(self, name: str) -> Seat:
        return Seat(name, "127.0.0.1")

    def cut(self, replica: str, other: str) -> None:
        raise NotImplementedError("loopback cannot be cut")

    def mend(self) -> None:
        pass


@dataclass
class Namespaces:
    """Engines and clients stand on the addresses of a bridge, replicas behind cables that end on it."""

    bridge: str
    net: str  # the first three numbers of all addresses
    _seats: dict[str, Seat] = field(default_factory=dict)
    _cuts: set[tuple[str, str]] = field(default_factory=set)

    def seat(self, name: str) -> Seat:
        return self._seats[name]

    def settle_engine(self, name: str, number: int) -> None:
        host = f"{self.net}.{number}"
        _ip("addr", "add", f"{host}/24", "dev", self.bridge)
        self._seats[name] = Seat(name, host)

    def settle_replica(self, name: str, number: int) -> str:
        """Its namespace."""
        space, host = f"{self.bridge}-{name}", f"{self.net}.{number}"
        _ip("netns", "add", space)
        self._seats[name] = Seat(name, host, ("ip", "netns", "exec", space))
        near = f"{self.bridge}r{number}"
        _ip("link", "add", near, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", near, "master", self.bridge, "up")
        _ip("-n", space, "link", "set", "lo", "up")
        _ip("-n", space, "addr", "add", f"{host}/24", "dev", "eth0")
        _ip("-n", space, "link", "set", "eth0", "up")
        # What comes in is looked up as "local" before any rule of ours, unless that rule stands behind them.
        _ip("-n", space, "rule", "add", "pref", "100", "lookup", "local")
        _ip("-n", space, "rule", "del", "pref", "0")
        return space

    def cut(self, replica: str, other: str) -> None:
        ends = [replica] if not self._seats[other].inside else [replica, other]
        for here, there in zip(ends, (other, replica), strict=False):
            self._cuts.add((here, there))
            self._drop("add", here, there)
            _ip(
                "-n",
                self._space(here),
                "neigh",
                "replace",
                *self._neighbour(there),
                "lladdr",
                NOBODY,
                "nud",
                "permanent",
            )

    def mend(self) -> None:
        for here, there in self._cuts:
            self._drop("del", here, there)
            _ip("-n", self._space(here), "neigh", "del", *self._neighbour(there))
        self._cuts.clear()

    def _drop(self, verb: str, here: str, there: str) -> None:
        _ip("-n", self._space(here), "rule", verb, "pref", "10", "from", self._seats[there].host, "blackhole")

    def _neighbour(self, name: str) -> tuple[str, ...]:
        return self._seats[name].host, "dev", "eth0"

    def _space(self, name: str) -> str:
        return self._seats[name].inside[-1]


def why_no_namespaces() -> str | None:
    """Why there cannot be any here; None where there can."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "network namespaces need root and the program ip"
    probe = f"toolway-probe-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True).returncode:
        return "network namespaces cannot be made here"
    _ip("netns", "delete", probe)
    return None


@contextmanager
def namespaces(replicas: Sequence[str]) -> Iterator[Namespaces]:
    number = next(_numbers)
    net = f"198.19.{(os.getpid() + number) % 250}"  # set aside for tests of networks
    ground = Namespaces(f"tw{os.getpid() % 100000}x{number % 10}", net)
    with ExitStack() as stack:
        _ip("link", "add", ground.bridge, "type", "bridge")
        stack.callback(_ip, "link", "delete", ground.bridge)
        _ip("link", "set", ground.bridge, "up")
        for place, name in enumerate(("clients", POSTGRES, *NATS), 1):
            ground.settle_engine(name, place)
        for place, name in enumerate(replicas, 21):
            stack.callback(_ip, "netns", "delete", ground.settle_replica(name, place))
        yield ground


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
