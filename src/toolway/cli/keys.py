"""`toolway keys`: who else may use the gateway. Through the gateway where one runs, else in its file."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from toolway.cli.exits import Exit, UsageError
from toolway.cli.output import Output
from toolway.cli.places import Where, gateway_for
from toolway.errors import NotFound
from toolway.gateway.principals import ApiKey
from toolway.gateway.rates import Rate
from toolway.gateway.state import State
from toolway.model import Json

_LONGEST_NAME = 100  # characters


async def create(
    output: Output, where: Where, name: str, scopes: Sequence[str], admin: bool, rate: str | None = None
) -> Exit:
    """Make a key, and show it this once."""
    if not 0 < len(name) <= _LONGEST_NAME:
        raise UsageError(f"the name of a key has 1 to {_LONGEST_NAME} characters")
    try:
        limit = Rate.parse(rate) if rate is not None else None
    except ValueError as exc:
        raise UsageError(str(exc)) from None
    door = await gateway_for(output, where)
    chosen = list(scopes) or None
    if door is not None:
        made = await door.ask("POST", "keys", {"name": name, "scopes": chosen, "admin": admin, "rate": rate})
    else:
        token, key = State.default(os.environ).keyring().create(name, chosen, admin, time.time(), limit)
        made = {**_facts(key), "token": token}
    if output.as_json:
        output.json(made)
        return Exit.OK
    sys.stdout.write(made["token"] + "\n")
    output.say(f"key {made['id']} for {name}, {_opens(made)}. It is not shown again; end it with:")
    output.say(f"  toolway keys revoke {made['id']}")
    return Exit.OK


async def show(output: Output, where: Where) -> Exit:
    """All keys, without what opens the door."""
    door = await gateway_for(output, where)
    if door is not None:
        keys = (await door.ask("GET", "keys"))["keys"]
    else:
        keys = [_facts(key) for key in State.default(os.environ).keyring().all()]
    if output.as_json:
        output.facts({"keys": keys})
    elif keys:
        rows = [(key["id"], key["name"], _opens(key), _date(key["created"])) for key in keys]
        output.table(("id", "name", "opens", "made"), rows)
    else:
        output.say("there are no keys; the token of this machine opens everything: toolway token")
    return Exit.OK


async def revoke(output: Output, where: Where, id_: str) -> Exit:
    """End a key; whoever has it is refused from now on."""
    door = await gateway_for(output, where)
    if door is not None:
        await door.ask("DELETE", f"keys/{quote(id_, safe='')}")
    elif not State.default(os.environ).keyring().revoke(id_):
        raise NotFound(f"there is no key {id_!r}", fix="see them all: toolway keys ls")
    if output.as_json:
        output.facts({"revoked": id_})
    else:
        output.say(f"key {id_} is revoked")
    return Exit.OK


def _facts(key: ApiKey) -> Json:
    rate = str(key.rate) if key.rate is not None else None
    facts = {"id": key.id, "name": key.name, "scopes": key.scopes, "admin": key.admin, "created": key.created}
    return {**facts, "rate": rate}


def _opens(key: Json) -> str:
    scopes: Any = key["scopes"]
    opened = "everything" if scopes is None else ", ".join(scopes)
    opened = f"{opened} and /admin" if key["admin"] else opened
    return f"{opened}, {key['rate']}" if key.get("rate") else opened  # a gateway of before knows no rates


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")
