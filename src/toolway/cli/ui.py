"""`toolway ui`: the dashboard of a gateway, in a browser that needs no password."""

from __future__ import annotations

import html
import os
from pathlib import Path

from toolway.cli.exits import Exit
from toolway.cli.gateways import Door
from toolway.cli.options import Session
from toolway.cli.output import Output
from toolway.cli.watching import door_of


async def ui(session: Session, *, browser: bool) -> Exit:
    """Open the dashboard by a link that works once."""
    output = session.output
    link = await link_to(await door_of(output, session.where))
    if output.as_json:
        output.json({"url": link})
        return Exit.OK
    show(output, link, browser=browser)
    return Exit.OK


async def link_to(door: Door) -> str:
    """A link that opens the dashboard once, within two minutes."""
    return f"{door.url}{(await door.ask('POST', 'links'))['path']}"


def show(output: Output, link: str, *, browser: bool) -> None:
    from toolway.cli.browser import can_open, open_in_browser

    if browser and can_open():
        open_in_browser(_private_page(link).as_uri())
        output.say("the dashboard opens in your browser; if it does not, open this link:", "dim")
    else:
        output.say("open this link; it works once, within two minutes:", "dim")
    output.line(link)


def _private_page(link: str) -> Path:
    """A page that leads to the link. What a browser is started with can be read by everybody on the machine; this file
    only by its owner."""
    from toolway.gateway.sealed import write_private
    from toolway.gateway.state import State

    file = State.default(os.environ).folder / "open.html"
    shown = html.escape(link, quote=True)
    head = f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={shown}">'
    write_private(file, f'{head}<title>Toolway</title><a href="{shown}">Open the dashboard</a>\n'.encode())
    return file
