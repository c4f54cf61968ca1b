"""`toolway doctor --security` checks of pins: how changes are handled, and which tools changed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from toolway.catalog.pin_keeper import PIN_FILE_NAME, DamagedPinsError, PinFile, hash_identity
from toolway.catalog.pins import ServerPins, item_name, server_key
from toolway.config.schema import Server
from toolway.hub.source import server_fingerprint
from toolway.part_api import Check, CheckedGateway


@dataclass(frozen=True, slots=True)
class PinnedServer:
    """An enabled server: its pinned definitions, and how the current ones differ."""

    name: str
    is_known: bool = True  # False: it has no pins
    pins_of_other_entry: bool = False  # pins exist for this name, with another command or URL
    count: int = 0
    approved: int = 0  # by a user
    held: tuple[str, ...] = ()  # names of definitions that wait for a review
    noted: tuple[str, ...] = ()  # names of definitions that changed and are used


@dataclass(frozen=True, slots=True)
class PinFacts:
    """How changed definitions are handled, and all servers' pins."""

    mode: str = "warn"
    setting: str = ""  # toolway.gateway.pins; "": not set
    ignored: tuple[str, ...] = ()  # patterns of toolway.gateway.ignoredChanges
    place: str = ""  # file of the pins
    problem: str = ""  # why they could not be read
    servers: tuple[PinnedServer, ...] = ()


def check_security(gateway: CheckedGateway) -> tuple[Check, ...]:
    """Return the evidence for whether tools changed since they were pinned or accepted."""
    return tuple(judge_pins(collect_pins(gateway)))


def collect_pins(gateway: CheckedGateway) -> PinFacts:
    """Collect what is known about a gateway's pins. May block."""
    settings = gateway.settings
    file = PinFile(gateway.folder / PIN_FILE_NAME)
    facts = PinFacts(
        mode=gateway.rules.pin_mode,
        setting=settings.pins,
        ignored=tuple(settings.ignored_changes),
        place=os.fspath(file.path),
    )
    if gateway.is_node:
        return replace(facts, problem="a cluster keeps them in its database: toolway trust tools ls")
    try:
        stored = file.load()
    except DamagedPinsError as exc:
        return replace(facts, problem=f"{file.path}: {exc}")
    return replace(facts, servers=tuple(_read(name, server, stored) for name, server in gateway.servers.items()))


def _read(name: str, server: Server, stored: Mapping[str, ServerPins]) -> PinnedServer:
    found = stored.get(server_key(name, hash_identity(server_fingerprint(server))))
    if found is None or not found.listed:
        return PinnedServer(name, False, any(each.name == name for each in stored.values()))
    return PinnedServer(
        name,
        count=len(found.pins),
        approved=sum(pin.approved for pin in found.pins.values()),
        held=tuple(item_name(name, key) for key, each in found.deviations.items() if each.held),
        noted=tuple(item_name(name, key) for key, each in found.deviations.items() if not each.held),
    )


def judge_pins(pins: PinFacts) -> Iterator[Check]:
    """Yield the evidence that follows from what is known about the pins."""
    yield _mode(pins)
    if pins.problem:
        yield Check("pins", "skip", "the pins could not be read", pins.problem, code="E-PINS-FILE")
        return
    for server in pins.servers:
        yield from _pinned(server, pins.place)
    for pattern in pins.ignored:
        yield Check("ignored", "warn", f"changes of {pattern} are not compared", "toolway.gateway.ignoredChanges")


def _mode(pins: PinFacts) -> Check:
    if pins.mode in ("hold", "review"):
        origin = "toolway.gateway.pins" if pins.setting else "default for this gateway"
        return Check("pins", "ok", f"changed definitions are on hold until someone reviews them ({pins.mode})", origin)
    origin = "toolway.gateway.pins" if pins.setting else "default for a gateway that listens on this machine only"
    return Check("pins", "fail", "changed definitions are used, with only a warning", origin).with_fix(
        "hold changes until someone reviews them", '"toolway": {"gateway": {"pins": "hold"}}', "E-TOOL-ON-HOLD"
    )


def _pinned(server: PinnedServer, place: str) -> Iterator[Check]:
    name = shlex.quote(server.name)
    if not server.is_known:
        other = (
            "the existing pins belong to another command or URL with this name" if server.pins_of_other_entry else ""
        )
        message = "it has no pins: it has not listed its tools since its entry was changed or added"
        yield Check(server.name, "skip", message, other or place).with_fix(
            "let the gateway start it once", "toolway serve"
        )
        return
    messages = [f"{item} changed and is on hold until you review it" for item in server.held]
    messages += [f"{item} changed, and is used" for item in server.noted]
    for message in messages:
        copy = f"toolway trust tools diff {name}; toolway trust tools accept {name}"
        yield Check(server.name, "fail", message, place).with_fix(
            "see what changed, then accept it", copy, "E-TOOL-ON-HOLD"
        )
    if not messages:
        seen = server.count - server.approved
        text = f"{server.count} definitions are pinned: {seen} when first received, {server.approved} after a review"
        yield Check(server.name, "ok", text, place)
