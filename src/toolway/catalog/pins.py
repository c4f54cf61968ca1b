"""Pins: the definitions that a server had when they were first seen or approved, by digest.

`PinReview` compares every list that a server sends with its pins. The catalog hides held items: no list, search or
call reaches them until a person approves the definition.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Literal

import msgspec

from toolway.catalog.definition_rules import ENCODED_COMMAND, LOOK_ALIKE, RuleMatch, ToolNames, inspect_definition
from toolway.types import Json

PinMode = Literal["note", "hold", "approve"]
#: Rules that hold in every mode. The gateway itself removes invisible characters (`invisibleCharacters`).
ALWAYS_HELD: Final = frozenset({ENCODED_COMMAND, LOOK_ALIKE})
#: Kinds of items that are pinned. Resources are data: they come and go.
PINNED_KINDS: Final = frozenset({"tools", "prompts", "templates"})
_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "tools": ("name", "title", "description", "inputSchema", "outputSchema", "annotations"),
    "prompts": ("name", "title", "description", "arguments"),
    "templates": ("uriTemplate", "name", "title", "description", "mimeType"),
}
MAX_DEFINITION_BYTES: Final = 16 * 1024  # of a definition that the file keeps for `toolway pins diff`
MAX_PINS: Final = 10_000  # of a server; a definition beyond them is new in every list

Reason = Literal["changed", "new", "not approved", "suspicious"]


class Pin(msgspec.Struct, frozen=True, omit_defaults=True):
    """The definition of one item that may be used."""

    digest: str
    since: float  # Unix time of the first sight or the approval
    approved: bool = False  # by a person
    definition: Json | None = None  # None if it is too large to keep


class Deviation(msgspec.Struct, frozen=True, omit_defaults=True):
    """A received definition that differs from its pin, has none, or has text that a person cannot see."""

    digest: str
    reason: Reason
    since: float
    held: bool  # False: used nevertheless, and shown to the user (`"pins": "note"`)
    findings: tuple[str, ...] = ()
    definition: Json | None = None


class ServerPins(msgspec.Struct, omit_defaults=True):
    """Pins of one server, by `kind/name`, and the received definitions that deviate from them.

    `identity` is a digest of the server's command or URL: another server under the same name has its own pins.
    """

    name: str
    identity: str
    pins: dict[str, Pin] = {}
    deviations: dict[str, Deviation] = {}
    listed: list[str] = []  # kinds whose list was received: later additions are new, even to an empty list


def server_key(name: str, identity: str) -> str:
    """Return the key of a server in the file of the pins."""
    return f"{name} {identity}"


def definition_digest(kind: str, definition: Json) -> str:
    """Return the SHA-256 of the parts of a definition that a model or a caller sees."""
    chosen = {field: definition[field] for field in _FIELDS[kind] if field in definition}
    return hashlib.sha256(msgspec.json.encode(chosen, order="sorted")).hexdigest()


class PinReview:
    """Decides for each received item whether it may be used. `PinKeeper` stores what changed (`changed_servers`)."""

    def __init__(
        self,
        stored: Mapping[str, ServerPins],
        mode_of: Callable[[str], PinMode],
        now: Callable[[], float],
        *,
        trusts_first_sight: bool = True,
    ) -> None:
        """Create the review.

        Args:
            stored: pins of earlier runs, by `server_key`.
            mode_of: returns the setting `pins` of a server.
            now: returns the Unix time.
            trusts_first_sight: False if the stored pins are lost: then every unknown definition deviates.
        """
        self.stored = stored
        self.servers: dict[str, ServerPins] = {}  # by name
        self.changed_servers: set[str] = set()  # with pins or deviations that are not saved yet
        self._mode_of = mode_of
        self._now = now
        self._trusts_first_sight = trusts_first_sight
        self._tool_names = ToolNames()
        self._inspected: dict[tuple[str, str], tuple[RuleMatch, ...]] = {}  # by name and digest

    def start_server(self, server: str, identity: str) -> None:
        """Use the stored pins of a server. `identity` is a digest of its command or URL."""
        known = self.servers.get(server)
        if known is None or known.identity != identity:
            stored = self.stored.get(server_key(server, identity))
            self.servers[server] = stored if stored is not None else ServerPins(server, identity)

    def review(self, server: str, kind: str, items: Mapping[str, Json]) -> dict[str, Deviation]:
        """Compare a list of a server with its pins. Return the held items by name.

        Pins what is seen for the first time, if the mode allows that.
        """
        if kind not in PINNED_KINDS:
            return {}
        if kind == "tools":
            self._tool_names.replace(server, items)
        stored = self.servers.setdefault(server, ServerPins(server, ""))
        is_first_list = kind not in stored.listed
        if is_first_list:
            stored.listed.append(kind)
            self.changed_servers.add(server)
        held: dict[str, Deviation] = {}
        for name, definition in items.items():
            key = f"{kind}/{name}"
            digest = definition_digest(kind, definition)
            deviation = self._examine(server, kind, name, definition, digest, is_first_list)
            if deviation is None:
                self._resolve(server, stored, key, kind, definition, digest)
                continue
            known = stored.deviations.get(key)
            if known is None or (known.digest, known.reason, known.held) != (
                digest,
                deviation.reason,
                deviation.held,
            ):
                stored.deviations[key] = known = deviation
                self.changed_servers.add(server)
            if known.held:
                held[name] = known
        for key in [key for key in stored.deviations if key.startswith(f"{kind}/")]:
            if key.partition("/")[2] not in items:  # the server no longer offers it
                del stored.deviations[key]
                self.changed_servers.add(server)
        if kind == "tools" and held:  # an honest tool is no look-alike of one that is held
            self._tool_names.replace(server, items.keys() - held.keys())
        return held

    def _examine(
        self,
        server: str,
        kind: str,
        name: str,
        definition: Json,
        digest: str,
        is_first_list: bool,
    ) -> Deviation | None:
        """Return how a definition deviates from its pin, or None if it may be used without a note."""
        pin = self.servers[server].pins.get(f"{kind}/{name}")
        if pin is not None and pin.digest == digest and pin.approved:
            return None  # a person has seen this very text
        findings = self._inspect(server, kind, name, definition, digest)
        if kind == "tools" and (pin is None or pin.digest != digest):
            alike = self._tool_names.find_alike(server, name)  # the pinned one of two names was there first
            if alike is not None:
                findings = (RuleMatch(LOOK_ALIKE, "hold", "name", alike), *findings)
        hides = any(each.effect == "hold" for each in findings)
        mode = self._mode_of(server)
        reason: Reason
        if hides:
            reason = "suspicious"
        elif pin is not None and pin.digest == digest:
            return None
        elif pin is not None:
            reason = "changed"
        elif mode == "approve" or not self._trusts_first_sight:
            reason = "not approved"
        elif (not is_first_list and mode == "hold") or len(self.servers[server].pins) >= MAX_PINS:
            reason = "new"
        else:
            return None
        held = mode != "note" or any(each.rule in ALWAYS_HELD for each in findings)
        kept = definition if len(msgspec.json.encode(definition)) <= MAX_DEFINITION_BYTES else None
        return Deviation(digest, reason, self._now(), held, tuple(str(each) for each in findings), kept)

    def _inspect(self, server: str, kind: str, name: str, definition: Json, digest: str) -> tuple[RuleMatch, ...]:
        found = self._inspected.get((name, digest))
        if found is None:
            if len(self._inspected) > 100_000:
                self._inspected.clear()
            chosen = {field: definition[field] for field in _FIELDS[kind] if field in definition}
            found = inspect_definition(chosen, partial(self._tool_names.is_foreign, server))
            self._inspected[name, digest] = found
        return found

    def _resolve(self, server: str, stored: ServerPins, key: str, kind: str, definition: Json, digest: str) -> None:
        """Pin a definition that is seen for the first time, and drop the deviation of one that is as pinned again."""
        if stored.deviations.pop(key, None) is not None:
            self.changed_servers.add(server)
        if key not in stored.pins:
            kept = definition if len(msgspec.json.encode(definition)) <= MAX_DEFINITION_BYTES else None
            stored.pins[key] = Pin(digest, self._now(), definition=kept)
            self.changed_servers.add(server)


def approve(stored: ServerPins, digests: Mapping[str, str], now: float) -> list[str]:
    """Make received definitions the pinned ones. Return the approved items.

    `digests` has, by `kind/name`, the digest of the definition that a person has seen. Another one is not approved.
    """
    approved = []
    for key, digest in digests.items():
        deviation = stored.deviations.get(key)
        if deviation is not None and deviation.digest == digest:
            del stored.deviations[key]
            stored.pins[key] = Pin(deviation.digest, now, approved=True, definition=deviation.definition)
            approved.append(key)
    return approved


def describe_changes(old: Json | None, new: Json | None) -> list[tuple[str, Any, Any]]:
    """Return the parts in which two definitions differ, as (path, old value, new value)."""
    changes: list[tuple[str, Any, Any]] = []
    pending: list[tuple[str, Any, Any]] = [("", old, new)]
    while pending:
        path, before, after = pending.pop(0)
        if before == after:
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            keys = [*before, *(key for key in after if key not in before)]
            pending += [(f"{path}.{key}" if path else key, before.get(key), after.get(key)) for key in keys]
        else:
            changes.append((path, before, after))
    return changes
