"""What a person does best next: a decision about plain facts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """What is known of this machine without starting anything."""

    servers: int = 0
    never_asked: int = 0
    unusable: int = 0  # entries with errors
    unapproved: int = 0  # files of projects that wait for their approval
    elsewhere: int = 0  # servers in the files of clients
    gateway: bool = False
    down: tuple[str, ...] = ()


@dataclass(frozen=True)
class Step:
    why: str
    command: str


def next_step(known: Known) -> Step:
    """The first thing that is missing."""
    if known.unapproved:
        return Step("A project's file waits for your approval", "toolway approve")
    if known.unusable:
        return Step(f"{_entries(known.unusable)} cannot be used", "toolway config validate")
    if not known.servers and known.elsewhere:
        return Step(f"Your clients know {_servers(known.elsewhere)}; take them over", "toolway init")
    if not known.servers:
        return Step("Take over what your clients have, or add a server", "toolway init")
    if known.down:
        return Step(f"{', '.join(known.down[:3])} cannot be used; see why", f"toolway doctor {known.down[0]}")
    if known.never_asked:
        return Step(f"{_servers(known.never_asked)} never answered yet; see whether all is well", "toolway doctor")
    if known.gateway:
        return Step("All is well; look for a tool", "toolway tools WORD")
    return Step("Call a tool, or give all servers to your clients at one address", "toolway serve")


def _servers(number: int) -> str:
    return "1 server" if number == 1 else f"{number} servers"


def _entries(number: int) -> str:
    return "1 entry" if number == 1 else f"{number} entries"
