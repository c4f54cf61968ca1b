"""`/admin/pins`: lists the definitions that differ from their pins, and accepts them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from toolway.catalog.pin_report import describe_pins
from toolway.catalog.pins import item_name
from toolway.errors import ConfigError, NotFound
from toolway.gateway.admin.routes import AdminRequest, Route
from toolway.gateway.admin.schema import BOOLEAN, INTEGER, NUMBER, STRING, STRINGS, array_of, nullable, object_of
from toolway.parts.pins.runtime import PinsRuntime
from toolway.types import Json

SCHEMAS: Final = {
    "PinList": object_of(
        {
            "enabled": BOOLEAN,
            "servers": array_of(object_of({"server": STRING, "pins": INTEGER})),
            "deviations": array_of(
                object_of(
                    {
                        **dict.fromkeys(("name", "server", "kind", "item", "reason", "digest"), STRING),
                        **dict.fromkeys(("on_hold", "complete"), BOOLEAN),
                        "since": NUMBER,
                        "findings": STRINGS,
                        "changes": array_of(
                            object_of({"path": STRING, "old": nullable("string"), "new": nullable("string")})
                        ),
                    }
                )
            ),
        }
    ),
    "PinAcceptance": object_of(dict.fromkeys(("server", "kind", "item", "digest"), STRING)),
    "PinAccepted": object_of({"accepted": STRING}),
}


def list_deviations(runtime: PinsRuntime, request: AdminRequest) -> Json:
    """Return the servers with pinned definitions, and the definitions that differ from their pins.

    Definitions on hold come first. They are hidden from clients until someone accepts them.
    """
    pins = runtime.pins
    found = describe_pins(pins.list_servers() if pins is not None else ())
    found["deviations"].sort(key=lambda each: (not each["on_hold"], each["name"]))
    return {"enabled": pins is not None, **_masked(found, runtime.mask)}


async def accept(runtime: PinsRuntime, request: AdminRequest) -> Json:
    """Accept the changed definition that a user has reviewed, which the request body identifies by its digest.

    Raises `NotFound` if this definition is not waiting for a review, and `ConfigError` if the server sends a different
    one by now.
    """
    given = {name: request.body.get(name) for name in ("server", "kind", "item", "digest")}
    for name, value in given.items():
        if not isinstance(value, str) or not value:
            raise ValueError(f"{name} must be a string")
    server, key, digest = str(given["server"]), f"{given['kind']}/{given['item']}", str(given["digest"])
    name = item_name(server, key)
    pins = runtime.pins
    found = [each for each in pins.list_servers() if each.name == server] if pins is not None else []
    if pins is None or not found or key not in found[0].deviations:
        raise NotFound(f"nothing to review for {name}", hint="see what is waiting: toolway trust tools ls")
    if not await pins.approve(server, {key: digest}, request.principal.caller_id):
        raise ConfigError(
            f"{name} changed after you reviewed it",
            detail=f"its digest is {found[0].deviations[key].digest}",
            hint=f"see the difference: toolway trust tools diff {name}",
            code="E-PINS-DIGEST",
        )
    return {"accepted": name}


def _masked(value: Any, mask: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {key: _masked(each, mask) for key, each in value.items()}
    return [_masked(each, mask) for each in value] if isinstance(value, list) else value


ROUTES: Final = (
    Route("GET", "/admin/pins", "Changed tools, with a diff", "PinList", list_deviations),
    Route(
        "POST",
        "/admin/pins/accept",
        "Accept the definition with this digest",
        "PinAccepted",
        accept,
        body="PinAcceptance",
    ),
)
