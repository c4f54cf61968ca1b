"""`toolway nodes`, `toolway drain` and `toolway cluster-key`: the gateways of a cluster, asked through any of them."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Final
from urllib.parse import quote

from toolway.cli.exits import Exit
from toolway.cli.gateways import Door
from toolway.cli.options import Session
from toolway.cli.output import Output
from toolway.cli.places import gateway_alone
from toolway.errors import ConfigError
from toolway.model import Json

_LOOK: Final = 0.5  # seconds between two looks at a node that drains


async def nodes(session: Session, node: str | None) -> Exit:
    """All nodes, a line each; or one, and what it owns."""
    output, door = session.output, await _door(session)
    found = await door.ask("GET", f"nodes/{quote(node, safe='')}" if node else "nodes")
    if output.as_json:
        output.facts(found)
    elif node:
        _print_one(output, found)
    else:
        _print_all(output, found)
    return Exit.OK if node or not _wants(found) else Exit.PARTIAL


async def drain(session: Session, node: str, wait: float) -> Exit:
    """Empty a node; with `wait` seconds until it owns nothing."""
    output, door = session.output, await _door(session)
    draining = str((await door.ask("POST", f"nodes/{quote(node, safe='')}/drain"))["draining"])
    left = await _left(door, draining)
    if left and not await _takers(door):
        output.say("no other node takes servers, so they will not be served", "yellow")
    loop = asyncio.get_running_loop()
    until = loop.time() + wait
    with output.spinner(f"{draining} hands over") as update:
        while left and loop.time() < until:
            update(f"{draining} still has {left}")
            await asyncio.sleep(_LOOK)
            left = await _left(door, draining)
    if output.as_json:
        output.facts({"draining": draining, "left": left})
    elif left:
        output.say(f"{draining} drains, and still has {left}; see how it does: toolway nodes")
    else:
        output.say(f"{draining} owns nothing any more, and can be stopped", "green")
    return Exit.TIMEOUT if left and wait else Exit.OK


def make_key(output: Output, out: Path | None) -> Exit:
    """A new key of a cluster: shown, or written to a file that is not there yet."""
    from toolway.gateway.replica.options import new_key

    key = new_key()
    if out is None:
        if output.as_json:
            output.json({"key": key})
        else:
            sys.stdout.write(key + "\n")
        return Exit.OK
    try:
        handle = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(key + "\n")
    except OSError as exc:
        raise ConfigError(
            f"the key was not written to {out}",
            evidence=exc.strerror or str(exc),
            fix="name a file that is not there yet: a cluster whose key is lost must begin anew",
            code="E-CLUSTER-KEY",
        ) from None
    if output.as_json:
        output.facts({"file": str(out)})
    else:
        output.say(
            f"a new key is in {out}; give the same file to every gateway: toolway serve --cluster-key-file {out}"
        )
    return Exit.OK


async def _door(session: Session) -> Door:
    return await gateway_alone(
        session.output,
        session.where,
        "no gateway runs here that could be asked for its cluster",
        fix="name one: --gateway http://HOST:8765 --token TOKEN",
    )


async def _left(door: Door, id_: str) -> int:
    """How many servers a node owns; one that has left owns none."""
    found = (await door.ask("GET", "nodes"))["nodes"]
    return sum(int(each["servers"]) for each in found if each["id"] == id_)


async def _takers(door: Door) -> bool:
    return any(each["state"] == "ready" for each in (await door.ask("GET", "nodes"))["nodes"])


def _wants(found: Json) -> bool:
    """Whether somebody should look: a server without an owner, a node that is silent, no NATS."""
    return bool(found["unowned"] or not found["nats"] or any(each["state"] == "silent" for each in found["nodes"]))


def _print_all(output: Output, found: Json) -> None:
    rows = [
        (
            f"{each['id']} *" if each["id"] == found["node"] else each["id"],
            each["state"],
            f"{each['servers']}/{each['capacity']}",
            each["version"],
            each["address"] or "over NATS",
            ",".join(each["labels"]) or "–",
        )
        for each in found["nodes"]
    ]
    output.table(("node", "state", "owns", "version", "address", "labels"), rows, right=("owns",), cut=True)
    owned = sum(each["servers"] for each in found["nodes"])
    output.say(f"{owned} have an owner, {found['unowned']} wait for one; * is the gateway that was asked", "dim")
    if found["unowned"]:
        output.say("those without an owner are taken within seconds, unless no node has room or the right labels")
    if not found["nats"]:
        output.say("this gateway is not connected to NATS: news reach it a second later", "yellow")


def _print_one(output: Output, found: Json) -> None:
    output.say(f"{found['id']}: {found['state']}, {found['address'] or 'over NATS'}, version {found['version']}")
    rows = [(each["server"], str(each["instance"]), each["tenant"]) for each in found["owns"]]
    if rows:
        output.table(("server", "instance", "tenant"), rows, right=("instance",))
    else:
        output.say("it owns no server")
    if found["more"]:
        output.say("and more")
