"""`toolway login` and `toolway logout`.

A login is kept where every program of this user finds it. With `--gateway` and a key it is kept by that gateway, for
the holder of the key: the browser is here, the token stays there.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

from toolway.cli import browser
from toolway.cli.exits import Exit, UsageError
from toolway.cli.gateways import Door, at_address
from toolway.cli.options import Where
from toolway.cli.output import Output
from toolway.cli.places import load, usable
from toolway.config.spec import OAuth
from toolway.errors import ToolwayError
from toolway.hub import Hub
from toolway.security.callback import Callback, listening, state_of


async def log_in(output: Output, where: Where, name: str, *, with_browser: bool) -> int:
    """Log in to a server in the browser."""
    if where.gateway is not None:
        return await _by_gateway(output, at_address(where.gateway, where.token), name, with_browser)
    loaded = load(output, where.config)
    server = usable(loaded, name)
    async with Hub(replace(loaded, servers={name: replace(server, lazy=True)})) as hub:
        async with _callback(server.auth or OAuth()) as callback:
            person = _Person(output, callback, with_browser)
            await hub.log_in(name, person.log_in, redirect_uri=callback.uri)
        tools, trouble = await _tools(hub, name)
    return _told(output, name, {"tools": tools, "kept": "here", **({"trouble": trouble} if trouble else {})})


async def log_out(output: Output, where: Where, name: str) -> int:
    """Forget a login, and tell its issuer."""
    if where.gateway is not None:
        had = bool((await at_address(where.gateway, where.token).log("DELETE", name)).get("had"))
    else:
        loaded = load(output, where.config)
        server = usable(loaded, name)
        async with Hub(replace(loaded, servers={name: replace(server, lazy=True)})) as hub:
            had = await hub.log_out(name)
    if output.as_json:
        output.facts({"server": name, "logged_out": had})
    else:
        output.say(f"logged out of {name}" if had else f"there was no login to {name}", "green" if had else "yellow")
    return Exit.OK


async def _by_gateway(output: Output, door: Door, name: str, with_browser: bool) -> int:
    """The gateway begins and ends the login; only the browser, and the port that it comes back to, are here."""
    async with _callback(OAuth()) as callback:
        begun = await door.log("POST", name, {"redirect_uri": callback.uri})
        url, id_ = str(begun.get("url", "")), begun.get("id")
        ended_at = await _Person(output, callback, with_browser).log_in(name, url)
        await door.log("POST", f"{name}/end", {"id": id_, "ended_at": ended_at})
    return _told(output, name, {"kept": door.url})


def _told(output: Output, name: str, facts: dict[str, Any]) -> int:
    if output.as_json:
        output.facts({"server": name, "logged_in": True, **facts})
        return Exit.OK
    tools = facts.get("tools")
    number = f": {tools} tool{'s' if tools != 1 else ''}" if tools is not None else ""
    output.say(f"logged in to {name}{number}", "green")
    if facts.get("trouble"):
        output.say(f"but its tools could not be listed: {facts['trouble']}", "yellow")
    elif tools is not None:
        output.say("every program of yours has the token now, sealed, and renews it by itself", "dim")
    else:
        output.say("the gateway keeps the token for your key, and renews it by itself", "dim")
    return Exit.OK


async def _tools(hub: Hub, name: str) -> tuple[int | None, str]:
    """How many there are: whoever has logged in wants to know that it was worth it."""
    try:
        return len(await hub.list_tools(server=name)), ""
    except ToolwayError as exc:
        return None, str(exc)


@asynccontextmanager
async def _callback(settings: OAuth) -> AsyncIterator[Callback]:
    """Where the login ends. A client that is registered already may end there alone."""
    known = settings.client_id is not None or settings.client_metadata_url is not None
    async with AsyncExitStack() as open_:
        try:
            callback = await open_.enter_async_context(listening(settings.redirect_uri, elsewhere=not known))
        except (OSError, ValueError) as exc:
            raise UsageError(
                f"nobody can come back to {settings.redirect_uri}",
                evidence=str(exc),
                fix='end what listens there, or give another "redirectUri" in the "auth" of the entry',
            ) from None
        yield callback


class _Person:
    """Whoever logs in."""

    def __init__(self, output: Output, callback: Callback, with_browser: bool) -> None:
        self._output = output
        self._callback = callback
        self._with_browser = with_browser and browser.can_open()

    async def log_in(self, server: str, url: str) -> str:
        """Bring the person there; where it ended."""
        address = browser.safe(url)
        if self._with_browser:
            self._output.say(f"log in to {server} in your browser; if no window opens, open this address:")
            self._output.say(address)
            browser.open_in_browser(url)
            return await self._callback.wait(url)
        self._output.say(f"open this address in a browser, and log in to {server}:")
        self._must_say(address)
        self._output.say(
            "if the browser is on another machine, it ends at a page that does not load: paste its address here"
        )
        return await self._either(url)

    def _must_say(self, address: str) -> None:
        """Without it nobody can go on, however quiet we are to be."""
        if self._output.quiet:
            print(address, file=sys.stderr, flush=True)
        else:
            self._output.say(address)

    async def _either(self, url: str) -> str:
        """What comes first: the browser, or an address that is pasted."""
        came = asyncio.ensure_future(self._callback.wait(url))
        try:
            while True:
                typed = browser.typed_line()
                await asyncio.wait({came, typed}, return_when=asyncio.FIRST_COMPLETED)
                if came.done():
                    return came.result()
                line = typed.result()
                if not line:
                    return await came  # nobody types here
                if state_of(line) == state_of(url):
                    return line
                self._output.say("this is not where that login ended; copy the whole address", "yellow")
        finally:
            came.cancel()
