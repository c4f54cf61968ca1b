"""Reviews received definitions: compares each with its pin, and checks it with the content rules.

This module only decides. A store (`pin_keeper.py`, or in a cluster `cluster/replication/shared_pins.py`) saves what a
review changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from toolway.catalog.definition_rules import ENCODED_COMMAND, LOOK_ALIKE, RuleMatch, ToolNames, inspect_definition
from toolway.catalog.pin_ignore import mask_ignored
from toolway.catalog.pins import (
    MAX_DEFINITION_BYTES,
    MAX_PINS,
    SHOWN_FIELDS,
    Deviation,
    Pin,
    PinMode,
    ProposedPin,
    Reason,
    ServerPins,
    definition_digest,
    server_key,
    shown_parts,
)
from toolway.types import Json

#: Rules that hold in every mode. The gateway itself removes invisible characters (`invisibleCharacters`).
ALWAYS_HELD: Final = frozenset({ENCODED_COMMAND, LOOK_ALIKE})

#: (server, `kind/name`, deviation or None if it ended)
OnDeviation = Callable[[str, str, Deviation | None], None]


class ReviewedServer(NamedTuple):
    """The unsaved result of comparing one server's lists with its pins."""

    pins: ServerPins
    kinds: frozenset[str]  # whose lists were reviewed
    proposed: dict[str, ProposedPin]  # by `kind/name`


class PinReview:
    """Compares received items with their pins and decides whether each may be used.

    A store saves `changed` and `proposed`.
    """

    def __init__(
        self,
        stored: Mapping[str, ServerPins],
        mode_of: Callable[[str], PinMode],
        now: Callable[[], float],
        *,
        trusts_first_sight: bool = True,
        waits_for_store: bool = False,
        ignored_of: Callable[[str, str], Sequence[str]] | None = None,
        on_deviation: OnDeviation | None = None,
    ) -> None:
        """Create the review for all servers' items.

        Args:
            stored: pins of earlier runs, by `server_key`.
            mode_of: returns the setting `pins` of a server.
            now: returns the Unix time.
            trusts_first_sight: False if the stored pins are lost, so every unknown definition deviates.
            waits_for_store: hold a proposed pin until the store has accepted it, unless the mode is `note`.
            ignored_of: returns the paths of the parts that are not compared, for a server and the name of an item.
            on_deviation: called if a deviation began, changed or ended.
        """
        self.stored = stored
        self.servers: dict[str, ServerPins] = {}  # by name
        self.changed: dict[str, set[str]] = {}  # kinds with pins or deviations that are not saved yet, by server
        self.proposed: dict[str, dict[str, ProposedPin]] = {}  # by server and `kind/name`
        self._mode_of = mode_of
        self._now = now
        self._trusts_first_sight = trusts_first_sight
        self._waits_for_store = waits_for_store
        self._ignored_of = ignored_of
        self._on_deviation = on_deviation
        self._tool_names = ToolNames()
        self._inspected: dict[tuple[str, str], tuple[RuleMatch, ...]] = {}  # by name and digest

    def start_server(self, server: str, identity: str) -> None:
        """Load the pins (accepted definitions) of a server that is starting, to compare its tools with them.

        `identity` is a digest of its command or URL. A server with another identity has its own pins.
        """
        known = self.servers.get(server)
        if known is None or known.identity != identity:
            self.adopt(self.stored.get(server_key(server, identity)) or ServerPins(server, identity))

    def adopt(self, pins: ServerPins) -> None:
        """Use a server's stored pins from now on, and drop proposed ones that were not stored."""
        self.servers[pins.name] = ServerPins(
            pins.name, pins.identity, dict(pins.pins), dict(pins.deviations), list(pins.listed)
        )
        self.proposed.pop(pins.name, None)

    def review(self, server: str, kind: str, items: Mapping[str, Json]) -> dict[str, Deviation | None]:
        """Compare a server's items with their pins; return those on hold, by name.

        The value is how the item deviates from its pin, or None if its pin is not stored yet. For an item that is seen
        for the first time, a pin is proposed, if the mode allows that.
        """
        if kind not in SHOWN_FIELDS:
            return {}
        if kind == "tools":
            self._tool_names.replace(server, items)
        pins = self.servers.setdefault(server, ServerPins(server, ""))
        is_first_list = kind not in pins.listed or any(
            each.for_first_list for key, each in self.proposed.get(server, {}).items() if key.startswith(f"{kind}/")
        )
        if kind not in pins.listed:
            pins.listed.append(kind)
            self._mark_changed(server, kind)
        held: dict[str, Deviation | None] = {}
        for name, definition in items.items():
            key, digest = f"{kind}/{name}", definition_digest(definition)
            deviation = self._examine(server, kind, name, definition, digest, is_first_list)
            if deviation is not None:
                known = self._set_deviation(server, key, deviation)
                if known.held:
                    held[name] = known
            elif not self._accept(server, key, definition, digest, is_first_list):
                held[name] = None
        for key in [key for key in pins.deviations if key.startswith(f"{kind}/")]:
            if key.partition("/")[2] not in items:  # the server no longer offers it
                self._end_deviation(server, key)
        if kind == "tools" and held:  # an honest tool is not a look-alike of one that is held
            self._tool_names.replace(server, items.keys() - held.keys())
        return held

    def take_changed(self) -> list[ReviewedServer]:
        """Return the pins and deviations that changed since the last call, by server, for a store to save."""
        taken = [
            ReviewedServer(
                ServerPins(own.name, own.identity, dict(own.pins), dict(own.deviations), list(own.listed)),
                frozenset(kinds),
                dict(self.proposed.get(name, {})),
            )
            for name, kinds in self.changed.items()
            if (own := self.servers.get(name)) is not None
        ]
        self.changed = {}
        return taken

    def digest(self, server: str, kind: str, name: str, definition: Json) -> str:
        """Return the digest of a received definition, to compare it with its pin.

        If the definition differs from its pin only in ignored parts, return the pin's digest.
        """
        digest = definition_digest(definition)
        pin = self.servers[server].pins.get(f"{kind}/{name}") if server in self.servers else None
        is_pinned = pin is not None and self._is_pinned(pin, server, kind, name, definition, digest)
        return pin.digest if pin is not None and is_pinned else digest

    def is_usable(self, server: str, kind: str, name: str, digest: str) -> bool:
        """Return True if a definition with this digest may be used: pinned, or deviations are not blocked."""
        if self._mode_of(server) == "warn" or server not in self.servers:
            return True
        pin = self.servers[server].pins.get(f"{kind}/{name}")
        return pin is not None and pin.digest == digest

    def _examine(
        self, server: str, kind: str, name: str, definition: Json, digest: str, is_first_list: bool
    ) -> Deviation | None:
        """Return how a received definition deviates from its pin, or why its text is suspicious.

        Return None if neither is true.
        """
        pin = self.servers[server].pins.get(f"{kind}/{name}")
        is_pinned = pin is not None and self._is_pinned(pin, server, kind, name, definition, digest)
        if pin is not None and pin.digest == digest and pin.approved:
            return None  # the user has seen this exact text
        findings = self._inspect(server, kind, name, definition, digest)
        if kind == "tools" and not is_pinned:
            alike = self._tool_names.find_alike(server, name)  # the pinned one of two names was there first
            if alike is not None:
                findings = (RuleMatch(LOOK_ALIKE, "hold", "name", alike), *findings)
        mode = self._mode_of(server)
        reason: Reason
        if any(each.effect == "hold" for each in findings):
            reason = "suspicious"
        elif is_pinned:
            return None
        elif pin is not None:
            reason = "changed"
        elif mode == "review" or not self._trusts_first_sight:
            reason = "not accepted"
        elif (not is_first_list and mode == "hold") or len(self.servers[server].pins) >= MAX_PINS:
            reason = "new"
        else:
            return None
        held = mode != "warn" or any(each.rule in ALWAYS_HELD for each in findings)
        return Deviation(digest, reason, self._now(), held, tuple(str(each) for each in findings), _kept(definition))

    def _is_pinned(self, pin: Pin, server: str, kind: str, name: str, definition: Json, digest: str) -> bool:
        """Return True if a definition is the pinned one, or differs from it only in parts that are not compared."""
        if pin.digest == digest:
            return True
        ignored = self._ignored_of(server, name) if self._ignored_of is not None else ()
        if not ignored or pin.definition is None:
            return False
        return mask_ignored(pin.definition, ignored) == mask_ignored(definition, ignored)

    def _inspect(self, server: str, kind: str, name: str, definition: Json, digest: str) -> tuple[RuleMatch, ...]:
        found = self._inspected.get((name, digest))
        if found is None:
            if len(self._inspected) > 100_000:
                self._inspected.clear()
            found = inspect_definition(shown_parts(kind, definition), partial(self._tool_names.is_foreign, server))
            self._inspected[name, digest] = found
        return found

    def _accept(self, server: str, key: str, definition: Json, digest: str, is_first_list: bool) -> bool:
        """Accept a definition that does not deviate: clear its deviation, and pin it if necessary.

        Return False if the item must not be used until a store has accepted the proposed pin.
        """
        self._end_deviation(server, key)
        if key in self.servers[server].pins:
            return True
        proposed = self.proposed.setdefault(server, {})
        known = proposed.get(key)
        if known is None or known.pin.digest != digest:
            proposed[key] = ProposedPin(Pin(digest, self._now(), definition=_kept(definition)), is_first_list)
            self._mark_changed(server, key.partition("/")[0])
        return not self._waits_for_store or self._mode_of(server) == "warn"

    def _set_deviation(self, server: str, key: str, new: Deviation) -> Deviation:
        deviations = self.servers[server].deviations
        known = deviations.get(key)
        if known is not None and (known.digest, known.reason, known.held) == (new.digest, new.reason, new.held):
            return known
        deviations[key] = new
        self._mark_changed(server, key.partition("/")[0])
        if self._on_deviation is not None:
            self._on_deviation(server, key, new)
        return new

    def _end_deviation(self, server: str, key: str) -> None:
        if self.servers[server].deviations.pop(key, None) is not None:
            self._mark_changed(server, key.partition("/")[0])
            if self._on_deviation is not None:
                self._on_deviation(server, key, None)

    def _mark_changed(self, server: str, kind: str) -> None:
        self.changed.setdefault(server, set()).add(kind)


def _kept(definition: Json) -> Json | None:
    """Return a definition if it is small enough to store with its pin, for users to compare, or else None."""
    return definition if len(msgspec.json.encode(definition)) <= MAX_DEFINITION_BYTES else None


def count_held(servers: Sequence[ServerPins]) -> int:
    """Return how many of these servers' definitions are on hold until the user accepts them."""
    return sum(each.held for pins in servers for each in pins.deviations.values())
