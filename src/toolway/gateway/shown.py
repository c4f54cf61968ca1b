"""Servers, calls and tools as `/admin` shows them: JSON without secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

import msgspec

from toolway.catalog.index import Tool
from toolway.config.mask import masked
from toolway.config.spec import Server
from toolway.events import CallFinished
from toolway.gateway.watch import Mask
from toolway.model import Json
from toolway.telemetry.calls import summary, waterfall
from toolway.upstream.status import Status

LONGEST: Final = 64 * 1024  # characters of the arguments of a call that are shown
DESCRIPTION: Final = 300  # characters, in a list


def status(facts: Status, mask: Mask) -> Json:
    """What a server writes may hold what it was given to keep."""
    shown = asdict(facts)
    shown["problems"] = [mask(each) for each in facts.problems]
    return {key: mask(value) if isinstance(value, str) else value for key, value in shown.items()}


def call(fact: CallFinished, mask: Mask, names: Mapping[str, str]) -> Json:
    """A line of a list. `names` are those of the keys' holders, by the caller they are."""
    return _readable(summary(fact), fact, mask, names)


def call_whole(fact: CallFinished, mask: Mask, names: Mapping[str, str]) -> Json:
    """One call with all that is known of it: where its time went, and what it was asked."""
    return {**_readable(waterfall(fact), fact, mask, names), "arguments": _arguments(fact, mask)}


def _readable(facts: Json, fact: CallFinished, mask: Mask, names: Mapping[str, str]) -> Json:
    for key in ("what", "evidence", "fix"):
        facts[key] = mask(facts[key])
    facts["tool"] = fact.tool or fact.name.removeprefix(f"{fact.server}.")
    facts["who"] = names.get(fact.caller, fact.caller) or "owner"
    return facts


def _arguments(fact: CallFinished, mask: Mask) -> Any:
    """What was asked, without secrets; None where it is not kept, a text where it is too long."""
    if not isinstance(fact.params, dict) or "arguments" not in fact.params:
        return None
    text = mask(msgspec.json.encode(masked(fact.params["arguments"])).decode())
    return msgspec.json.decode(text) if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def tool(found: Tool) -> Json:
    """A line of a list of many: enough to find it by."""
    sent = {key: found.raw[key] for key in ("name", "description", "inputSchema") if found.raw.get(key)}
    notes = found.annotations
    return {
        "server": found.server,
        "tool": found.key,
        "model_name": found.model_name,
        "title": found.title or "",
        "description": (found.description or "")[:DESCRIPTION],
        "size": len(msgspec.json.encode(sent)),
        "read_only": notes.get("readOnlyHint") is True,
        "destructive": notes.get("destructiveHint") is True,
    }


def definition(server: Server) -> Json:
    """The settings of a server in force, without secrets; what is as usual is left out."""
    usual = asdict(Server(command="x") if server.command else Server(url="http://x"))
    found: Json = {}
    for key, value in asdict(server).items():
        if value != usual.get(key) and value is not None:
            found[key] = masked(msgspec.to_builtins(value, enc_hook=str), key)
    return found
