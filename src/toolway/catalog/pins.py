"""Pins: the definitions that a server had when they were first seen or accepted, by digest.

`PinReview` (pin_review.py) compares every list that a server sends with its pins. `PinKeeper` (pin_keeper.py) stores
them in a file, `SharedPins` (cluster/replication/shared_pins.py) in the database of a cluster.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Collection, Mapping, Sequence
from typing import Any, Final, Literal, Protocol

import msgspec

from toolway.types import Json

PinMode = Literal["warn", "hold", "review"]
#: Kind and name of a server's instructions, which are pinned like an item of a list.
INSTRUCTIONS: Final = "instructions"
#: Parts of each pinned kind that a model sees: the content rules apply to them. All parts are compared, because
#: clients get all (`_meta`, `icons`, `execution`, parts of later versions). Resources are data: they come and go.
SHOWN_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "tools": ("name", "title", "description", "inputSchema", "outputSchema", "annotations"),
    "prompts": ("name", "title", "description", "arguments"),
    "templates": ("uriTemplate", "name", "title", "description", "mimeType"),
    INSTRUCTIONS: ("text",),
}
MAX_DEFINITION_BYTES: Final = 16 * 1024  # of a definition that the file keeps for `toolway trust tools diff`
MAX_PINS: Final = 10_000  # of a server; a definition beyond them is new in every list

Reason = Literal["changed", "new", "not accepted", "suspicious"]


class Pin(msgspec.Struct, frozen=True, omit_defaults=True):
    """The digest that the definition of an item (tool, prompt, template, or instructions) must have."""

    digest: str
    since: float  # Unix time of the first sight or the approval
    approved: bool = False  # by a user
    definition: Json | None = None  # None if it is too large to keep


class Deviation(msgspec.Struct, frozen=True, omit_defaults=True):
    """A received definition that differs from its pin, has no pin yet, or contains suspicious text."""

    digest: str
    reason: Reason
    since: float
    held: bool  # False: used nevertheless, and shown to the user (`"pins": "warn"`)
    findings: tuple[str, ...] = ()
    definition: Json | None = None


class ServerPins(msgspec.Struct, omit_defaults=True):
    """Pins of one server, by `kind/name`, and the received definitions that deviate from them.

    `identity` is a digest of the server's command or URL, so another server with the same name has its own pins.
    """

    name: str
    identity: str
    pins: dict[str, Pin] = {}
    deviations: dict[str, Deviation] = {}
    listed: list[str] = []  # kinds whose list was received: later additions are new, even to an empty list


def server_key(name: str, identity: str) -> str:
    """Return the key under which the pins of a server are stored: its name and its identity."""
    return f"{name} {identity}"


def definition_digest(definition: Json) -> str:
    """Return the SHA-256 of a tool, prompt, or resource definition."""
    return hashlib.sha256(msgspec.json.encode(definition, order="sorted")).hexdigest()


def shown_parts(kind: str, definition: Json) -> Json:
    """Return the parts of a definition that a model sees."""
    return {field: definition[field] for field in SHOWN_FIELDS[kind] if field in definition}


def item_name(server: str, key: str) -> str:
    """Return the display name of a pinned item: `server.tool`, or `server/instructions`."""
    kind, _, name = key.partition("/")
    return f"{server}/{name}" if kind == INSTRUCTIONS else f"{server}.{name}"


class ProposedPin(msgspec.Struct, frozen=True):
    """A new pin that a review proposes. It is valid once the store has accepted it."""

    pin: Pin
    for_first_list: bool  # accepted because it is on the first list of its kind


def merge_review(
    stored: ServerPins | None, reviewed: ServerPins, kinds: Collection[str], proposed: Mapping[str, ProposedPin]
) -> tuple[ServerPins, bool]:
    """Merge the result of a review of the lists `kinds` of a server into the stored pins of that server.

    Return the merged pins, and False if a proposed pin was rejected. A stored pin is never replaced, because another
    process pinned or approved it after the review read the pins.
    """
    base = stored if stored is not None else ServerPins(reviewed.name, reviewed.identity)
    pins = dict(base.pins)
    accepted = True
    for key, each in proposed.items():
        known = pins.get(key)
        if known is None and len(pins) < MAX_PINS and not (each.for_first_list and _kind(key) in base.listed):
            pins[key] = each.pin
        else:
            accepted = accepted and known is not None and known.digest == each.pin.digest
    deviations = {key: each for key, each in base.deviations.items() if _kind(key) not in kinds}
    deviations |= {key: each for key, each in reviewed.deviations.items() if _kind(key) in kinds}
    for key in [key for key, each in deviations.items() if key in pins and _is_settled(pins[key], each)]:
        del deviations[key]
    listed = [*base.listed, *(kind for kind in reviewed.listed if kind in kinds and kind not in base.listed)]
    return ServerPins(base.name, base.identity, pins, deviations, listed), accepted


def merge_without_store(
    reviewed: ServerPins, kinds: Collection[str], proposed: Mapping[str, ProposedPin]
) -> ServerPins:
    """Return a server's pins after a review of the lists `kinds`. Without a store, all proposed pins count."""
    before = ServerPins(reviewed.name, reviewed.identity, reviewed.pins, reviewed.deviations)
    before.listed = [kind for kind in reviewed.listed if kind not in kinds]
    return merge_review(before, reviewed, kinds, proposed)[0]


def _kind(key: str) -> str:
    return key.partition("/")[0]


def _is_settled(pin: Pin, deviation: Deviation) -> bool:
    return pin.digest == deviation.digest and (pin.approved or deviation.reason != "suspicious")


class ItemPins(Protocol):
    """Compares received definitions with their pins (the accepted ones), and decides which may be used.

    See `pin_keeper.py`.
    """

    def start_server(self, server: str, identity: str) -> None:
        """Load a server's pins (accepted definitions). Call this before the first review of its lists.

        `identity` is a fingerprint of the server's command or URL. If a server with this name was known under another
        identity, that server's pins are no longer used.
        """
        ...

    def review(self, server: str, kind: str, items: Mapping[str, Json]) -> Mapping[str, object]:
        """Compare a server's items with their pins; return those on hold, by name.

        The value is how the item deviates from its pin, or None if only its new pin is not stored yet.
        """
        ...

    def digest(self, server: str, kind: str, name: str, definition: Json) -> str:
        """Return the digest of a received definition, to compare it with its pin.

        If the definition differs from its pin only in ignored parts, return the pin's digest.
        """
        ...

    def is_usable(self, server: str, kind: str, name: str, digest: str) -> bool:
        """Return True if a definition with this digest may be used: it is pinned, or deviations are not blocked."""
        ...


class Pins(ItemPins, Protocol):
    """The pins (accepted definitions) of all servers, stored in a file or in a database."""

    def list_servers(self) -> Sequence[ServerPins]:
        """Return the pins (accepted definitions) of the current servers, with received definitions that deviate."""
        ...

    def approve(self, server: str, digests: Mapping[str, str], who: str = "") -> Awaitable[list[str]]:
        """Store definitions that the user accepted as a server's new pins.

        Return the keys (`kind/name`) that were approved. `digests` has, by key, the digest of the definition that the
        user has seen. `who` is the id of the principal. Raises `ConfigError` if the approval cannot be stored.
        """
        ...

    def close(self) -> None: ...


def approve(stored: ServerPins, digests: Mapping[str, str], now: float) -> list[str]:
    """Replace a server's pins with the deviating definitions that the user approved. Return their keys (`kind/name`).

    `digests` has, by key, the digest of the definition that the user has seen. No other definition is approved.
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
