"""Admin API for pins, the approved definitions of tools: lists definitions that changed, and approves one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toolway.catalog.pin_report import describe_pins
from toolway.catalog.pins import Pins, item_name
from toolway.errors import ConfigError, NotFound
from toolway.gateway.principals import Principal
from toolway.types import Json


class PinsAdmin:
    """Handlers of `/admin/pins`: list changed tool definitions, and approve one.

    `get_pins` returns None if the gateway does not compare definitions with approved ones.
    """

    def __init__(self, get_pins: Callable[[], Pins | None], mask: Callable[[str], str]) -> None:
        self._get_pins = get_pins
        self._mask = mask

    def list_deviations(self) -> Json:
        """Return the servers whose definitions are pinned, and the definitions that differ from their pins.

        Those that are held, which means hidden from clients until they are approved, are first.
        """
        pins = self._get_pins()
        found = describe_pins(pins.list_servers() if pins is not None else ())
        found["deviations"].sort(key=lambda each: (not each["held"], each["name"]))
        return {"enabled": pins is not None, **self._masked(found)}

    async def approve(self, body: Json, principal: Principal) -> Json:
        """Approve the changed definition that a user has reviewed; the request body names it by its digest.

        Raises `NotFound` if this definition is not waiting for approval, `ConfigError` if the server sends another one
        by now.
        """
        given = {name: body.get(name) for name in ("server", "kind", "item", "digest")}
        for name, value in given.items():
            if not isinstance(value, str) or not value:
                raise ValueError(f"{name} must be a string")
        server, key, digest = str(given["server"]), f"{given['kind']}/{given['item']}", str(given["digest"])
        name = item_name(server, key)
        pins = self._get_pins()
        found = [each for each in pins.list_servers() if each.name == server] if pins is not None else []
        if pins is None or not found or key not in found[0].deviations:
            raise NotFound(f"nothing to review for {name}", hint="see what is waiting: toolway trust tools ls")
        if not await pins.approve(server, {key: digest}, principal.caller_id):
            raise ConfigError(
                f"{name} changed after you reviewed it",
                detail=f"its digest is {found[0].deviations[key].digest}",
                hint=f"see the difference: toolway trust tools diff {name}",
                code="E-PINS-DIGEST",
            )
        return {"approved": name}

    def _masked(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._mask(value)
        if isinstance(value, dict):
            return {key: self._masked(each) for key, each in value.items()}
        return [self._masked(each) for each in value] if isinstance(value, list) else value
