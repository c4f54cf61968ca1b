"""What a gateway remembers for the people who look after it: calls, changes of state, and how busy each server is.

It hears of everything at once, so it only notes things down; they become words when somebody looks. All of it is in
memory and bounded.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from msgspec.structs import replace

from toolway.config.mask import masker
from toolway.config.spec import Server
from toolway.events import (
    Access,
    AuditFailed,
    AuditResumed,
    CallFinished,
    CallRecovered,
    CatalogChanged,
    Connected,
    Event,
    LoopResumed,
    LoopStalled,
    Lost,
    StateChanged,
)
from toolway.gateway.pulse import Pulse
from toolway.gateway.recent import Recent
from toolway.model import Json
from toolway.telemetry.calls import RecentCalls
from toolway.telemetry.escalations import Matter, matter_of

CHANGES: Final = 300  # of state that are kept of one server
MATTERS: Final = 200  # for a person; the oldest gives way
SETTLED: Final = ("given-up", "login-needed")  # by a server that answers again
Mask = Callable[[str], str]


class Masks:
    """What hides the secrets of each server, made once for each definition."""

    def __init__(self, servers: Callable[[], Mapping[str, Server]]) -> None:
        self._servers = servers
        self._known: dict[str, tuple[Server, Mask]] = {}

    def of(self, name: str) -> Mask:
        server = self._servers().get(name)
        if server is None:
            return masker([])
        known = self._known.get(name)
        if known is None or known[0] is not server:
            if len(self._known) > 2 * len(self._servers()) + 100:
                self._known.clear()  # of servers that are gone
            known = self._known[name] = (server, masker([server]))
        return known[1]


class Watch:
    """A sink of the hub's facts."""

    wants_steps = False

    def __init__(
        self,
        servers: Callable[[], Mapping[str, Server]],
        fix_of: Callable[[str], str] = lambda _: "",
        now: Callable[[], float] = time.time,
    ) -> None:
        """`fix_of` says what can be done about a server now."""
        self._servers = servers
        self._fix_of = fix_of
        self._now = now
        self.masks = Masks(servers)
        self.calls = RecentCalls()
        self.events: Recent[Json] = Recent()
        self.pulses: dict[str, Pulse] = {}
        self.lives: dict[str, deque[Json]] = {}
        self.matters: dict[str, Matter] = {}  # what a person must see to, by its name

    def on_call(self, fact: CallFinished) -> None:
        self.calls.on_call(fact)
        if fact.outcome != "ok":
            self._look_at(fact)
        pulse = self.pulses.get(fact.server)
        if pulse is None:
            if fact.server not in self._servers():
                return  # a name that somebody made up
            pulse = self.pulses[fact.server] = Pulse()
            self._forget_removed(self.pulses)
        pulse.record(fact.seconds, fact.outcome != "ok", self._now())

    def on_event(self, fact: Event) -> None:
        if isinstance(fact, StateChanged | CallRecovered | AuditFailed):
            self._look_at(fact)
        if isinstance(fact, StateChanged):
            life = self.lives.get(fact.server)
            if life is None:
                life = self.lives[fact.server] = deque(maxlen=CHANGES)
                self._forget_removed(self.lives)
            why = self.masks.of(fact.server)(fact.why)
            life.append({"at": self._now(), "state": fact.new, "why": why})
            self.note("state", fact.server, why, state=fact.new)
        elif isinstance(fact, Connected):
            for kind in SETTLED:
                self.matters.pop(f"{kind}-{fact.server}", None)
            self.note("link", fact.server, f"connected, speaking {fact.protocol}")
        elif isinstance(fact, Lost):
            self.note("link", fact.server, f"lost: {self.masks.of(fact.server)(fact.why)}")
        elif isinstance(fact, CatalogChanged):
            self.note("catalog", fact.server, _changes(fact))
        elif isinstance(fact, AuditResumed):
            self.matters.pop("audit", None)
        elif isinstance(fact, Access) and fact.what == "throttled":
            self.note("matter", "", f"the key {fact.who} is held up: {fact.why}")
        elif isinstance(fact, LoopStalled):
            self.note("loop", "", fact.why)
        elif isinstance(fact, LoopResumed):
            self.note("loop", "", f"the event loop turns again, after {fact.seconds:.1f} s")

    def _look_at(self, fact: Event) -> None:
        found = matter_of(fact, self._fix_of)
        if found is None or found.name in self.matters:
            return
        while len(self.matters) >= MATTERS:
            del self.matters[next(iter(self.matters))]
        mask = self.masks.of(found.server)
        shown = {name: mask(getattr(found, name))[:2000] for name in ("what", "evidence", "fix")}
        self.matters[found.name] = replace(found, at=self._now(), **shown)
        self.note("matter", found.server, shown["what"])

    def note(self, kind: str, server: str, text: str, **more: str) -> None:
        """Something that a person may want to know later."""
        self.events.add({"at": self._now(), "kind": kind, "server": server, "text": text[:2000], **more})

    def happenings(self, fits: Callable[[Json], bool], most: int) -> list[Json]:
        """The newest that fit, with their numbers."""
        found: list[Json] = []
        for number, event in self.events.newest_first():
            if fits(event):
                found.append({"n": number, **event})
                if len(found) >= most:
                    break
        return found

    def _forget_removed(self, of: dict[str, Pulse] | dict[str, deque[Json]]) -> None:
        servers = self._servers()
        if len(of) > 2 * len(servers) + 100:
            for name in [name for name in of if name not in servers]:
                del of[name]


def _changes(fact: CatalogChanged) -> str:
    parts = [
        f"{len(names)} {word}"
        for names, word in ((fact.added, "added"), (fact.removed, "removed"), (fact.changed, "changed"))
        if names
    ]
    return f"{fact.kind}: {', '.join(parts) or 'read again'}"
