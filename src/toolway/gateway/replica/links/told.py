"""What the owner of a server must know of a call that another node brings: from the call to its pass, and back."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from toolway.cluster.passes import Pass, Sealer, issue
from toolway.cluster.record.places import Held
from toolway.gateway.codes import PASS_KEY, TIMEOUT_KEY
from toolway.model import Call, Json

HEADSTART: Final = 0.25  # seconds before our own deadline in which the owner says what became of a call
SHARE: Final = 10  # the most of the time that is left which that may be, as one in so many
LATE_SHARE: Final = 2  # the same for a call that has waited for its owner, who may have to start the server


class Told(msgspec.Struct, frozen=True, gc=False):
    """Of a call. What a node does for itself has none of it."""

    principal: str
    name: str
    caller: str
    endpoint: str
    call: str
    key: str | None
    deadline: float  # on the loop's clock; 0 = none
    forwarded: bool = False  # another node brought it to us


NOTHING: Final = Told("", "", "", "", "", None, 0.0)


def told_of(call: Call) -> Told:
    visit: Any = call.origin
    if visit is None:
        return Told("", "", call.caller, "", call.id, call.key, call.deadline)
    who = visit.principal
    brought = visit.forwarded is not None
    return Told(who.id, who.name, call.caller, visit.endpoint, call.id, call.key, call.deadline, brought)


def with_pass(params: Json, told: Told, held: Held, sealer: Sealer, sender: str, share: int = SHARE) -> Json:
    """The parameters of a request to the owner of a place."""
    place = held.place
    what = Pass(
        held.node,
        place.tenant,
        place.server,
        place.instance,
        held.fence,
        told.principal,
        told.caller,
        told.call,
        told.key,
        sender,
        told.name,
        told.endpoint,
    )
    meta: Json = {**(params.get("_meta") or {}), PASS_KEY: issue(sealer, what)}
    if told.deadline:
        left = told.deadline - asyncio.get_running_loop().time()
        left -= min(HEADSTART, left / share)  # whoever is nearer to the work knows better what became of it
        meta[TIMEOUT_KEY] = max(1, round(left * 1000))
    return {**params, "_meta": meta}
