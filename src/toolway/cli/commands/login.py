"""`toolway login` and `toolway logout`, and the browser of the user.

A login is stored where every program of this user finds it. With `--gateway` and an API key, that gateway stores it for
the holder of the key: the browser runs here, the token stays in the gateway.

The login URL is from a server: it is checked and percent-encoded before a program gets it, and it is never passed to a
shell.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import webbrowser
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote

import typer

from toolway._os import has_desktop
from toolway.auth.redirect_server import open_redirect_server, state_from_url
from toolway.auth.urls import check_oauth_url
from toolway.cli.exit_codes import ExitCode, UsageError
from toolway.cli.framework import CommandResult
from toolway.cli.gateway_client import gateway_from_url
from toolway.cli.options import CommandContext, TargetOptions
from toolway.cli.output import Output
from toolway.cli.params import ServerName
from toolway.cli.targets import load_masked_config, usable_server
from toolway.config.schema import OAuth
from toolway.errors import ToolwayError

if TYPE_CHECKING:
    from toolway.auth.redirect_server import RedirectServer
    from toolway.cli.gateway_client import GatewayClient
    from toolway.hub.hub import Hub

BROWSER_START_TIMEOUT_S: Final = 2.0  # seconds for a browser to start; some block until they are closed
_SAFE_URL_CHARS: Final = (
    ":/?#[]@!*+,;=&%"  # besides letters, digits and `-._~`; no quote, parenthesis, dollar or backslash
)


def login(
    context: CommandContext,
    name: ServerName,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the login URL; accepts the final URL if you paste it.")
    ] = False,
) -> CommandResult:
    """Open the browser for the login to the server, and store the token.

    All your programs then use the token, including those already running. With --gateway and an API key, the
    gateway stores the token for that key.
    """
    return run_login(context.output, context.target_options, name, with_browser=not no_browser)


def logout(context: CommandContext, name: ServerName) -> CommandResult:
    return run_logout(context.output, context.target_options, name)


# -- login and logout --------------------------------------------------------------------------------------------------


async def run_login(output: Output, target_options: TargetOptions, name: str, *, with_browser: bool) -> int:
    """Log in to a server with OAuth in the browser, and store the token."""
    from toolway.hub.hub import Hub

    if target_options.gateway is not None:
        return await _login_through_gateway(output, gateway_from_url(target_options), name, with_browser)
    loaded = load_masked_config(output, target_options)
    server = usable_server(loaded, name)
    async with Hub(replace(loaded, servers={name: replace(server, lazy=True)})) as hub:
        async with _listen_for_redirect(server.auth or OAuth()) as callback:
            browser_login = _BrowserLogin(output, callback, with_browser)
            await hub.login(name, browser_login.authorize, redirect_uri=callback.uri)
        tools, tools_error = await _count_tools(hub, name)
    return _report_login(
        output, name, {"tools": tools, "stored_in": "here", **({"trouble": tools_error} if tools_error else {})}
    )


async def run_logout(output: Output, target_options: TargetOptions, name: str) -> int:
    """Delete the stored login to a server and revoke its token at the issuer."""
    from toolway.hub.hub import Hub

    if target_options.gateway is not None:
        existed = bool((await gateway_from_url(target_options).request_login("DELETE", name)).get("had"))
    else:
        loaded = load_masked_config(output, target_options)
        server = usable_server(loaded, name)
        async with Hub(replace(loaded, servers={name: replace(server, lazy=True)})) as hub:
            existed = await hub.logout(name)
    if output.as_json:
        output.print_json({"server": name, "logged_out": existed})
    else:
        output.info(
            f"logged out of {name}" if existed else f"there was no login to {name}", "green" if existed else "yellow"
        )
    return ExitCode.OK


async def _login_through_gateway(output: Output, gateway: GatewayClient, name: str, with_browser: bool) -> int:
    """Log in to a server through a gateway, which stores the token.

    Only the browser and the callback port are on this machine.
    """
    async with _listen_for_redirect(OAuth()) as callback:
        started = await gateway.request_login("POST", name, {"redirect_uri": callback.uri})
        url, id_ = str(started.get("url", "")), started.get("id")
        redirect_url = await _BrowserLogin(output, callback, with_browser).authorize(name, url)
        await gateway.request_login("POST", f"{name}/end", {"id": id_, "ended_at": redirect_url})
    return _report_login(output, name, {"stored_in": gateway.url})


def _report_login(output: Output, name: str, fields: dict[str, Any]) -> int:
    if output.as_json:
        output.print_json({"server": name, "logged_in": True, **fields})
        return ExitCode.OK
    tools = fields.get("tools")
    tool_count = f": {tools} tool{'s' if tools != 1 else ''}" if tools is not None else ""
    output.info(f"logged in to {name}{tool_count}", "green")
    if fields.get("trouble"):
        output.info(f"its tools could not be listed: {fields['trouble']}", "yellow")
    elif tools is not None:
        output.info("all your programs can use the encrypted token now; it is refreshed automatically", "dim")
    else:
        output.info("the gateway stores the token for your key and refreshes it automatically", "dim")
    return ExitCode.OK


async def _count_tools(hub: Hub, name: str) -> tuple[int | None, str]:
    """Return a server's tool count and "", or None and an error message.

    A number shows the user that the login works.
    """
    try:
        return len(await hub.list_tools(server=name)), ""
    except ToolwayError as exc:
        return None, str(exc)


# -- the user's part of a login ----------------------------------------------------------------------------------------


@asynccontextmanager
async def _listen_for_redirect(settings: OAuth) -> AsyncIterator[RedirectServer]:
    """Listen on a local port for the OAuth redirect that ends a login.

    A pre-registered OAuth client accepts only its configured redirect URI, so the port is then fixed. Raises
    `UsageError` if the port is in use.
    """
    is_registered = settings.client_id is not None or settings.client_metadata_url is not None
    async with AsyncExitStack() as open_:
        try:
            callback = await open_.enter_async_context(
                open_redirect_server(settings.redirect_uri, any_port=not is_registered)
            )
        except (OSError, ValueError) as exc:
            raise UsageError(
                f"cannot listen for the login redirect at {settings.redirect_uri}",
                detail=str(exc),
                hint='stop the program that listens there, or set another "redirectUri" in the "auth" of the entry',
            ) from None
        yield callback


class _BrowserLogin:
    """The user's side of an OAuth login: opens the browser or prints the URL.

    Without a browser on this machine, the user can paste the final URL.
    """

    def __init__(self, output: Output, callback: RedirectServer, with_browser: bool) -> None:
        self._output = output
        self._callback = callback
        self._with_browser = with_browser and can_open_browser()

    async def authorize(self, server: str, url: str) -> str:
        """Send the user to the login URL and return the redirect URL of the finished login."""
        address = encode_url(url)
        if self._with_browser:
            self._output.info(f"log in to {server} in your browser; if no window opens, open this URL:")
            self._output.info(address)
            open_in_browser(url)
            return await self._callback.wait_for_redirect(url)
        self._output.info(f"open this URL in a browser and log in to {server}:")
        self._print_url(address)
        self._output.info(
            "if the browser is on another machine, the login ends at a page that does not load: paste its URL here"
        )
        return await self._wait_for_redirect(url)

    def _print_url(self, address: str) -> None:
        """Print the login URL, even with --quiet: the login cannot continue without it."""
        if self._output.quiet:
            print(address, file=sys.stderr, flush=True)
        else:
            self._output.info(address)

    async def _wait_for_redirect(self, url: str) -> str:
        """Wait for the browser's redirect or a redirect URL that the user pastes; return the first."""
        redirect = asyncio.ensure_future(self._callback.wait_for_redirect(url))
        try:
            while True:
                typed = read_line()
                await asyncio.wait({redirect, typed}, return_when=asyncio.FIRST_COMPLETED)
                if redirect.done():
                    return redirect.result()
                line = typed.result()
                if not line:
                    return await redirect  # end of input: nothing can be pasted
                if state_from_url(line) == state_from_url(url):
                    return line
                self._output.info("this URL does not belong to this login; copy the whole URL", "yellow")
        finally:
            redirect.cancel()


# -- browser and terminal ----------------------------------------------------------------------------------------------


def encode_url(url: str) -> str:
    """Return a login URL with shell metacharacters percent-encoded.

    Raises `AuthError` if the URL is neither https nor http on this machine.
    """
    check_oauth_url(url)
    return quote(url, safe=_SAFE_URL_CHARS)


def can_open_browser() -> bool:
    """Return True if this machine probably has a graphical browser for the user.

    A text browser does not count: it would take over this terminal.
    """
    return has_desktop(os.environ)


def open_in_browser(url: str) -> None:
    """Open a login URL in the browser. Raises `AuthError` if it is neither https nor http on this machine."""
    start_browser(encode_url(url))


def start_browser(address: str) -> threading.Thread:
    """Open an address in the browser, in a background thread: some browsers block until they are closed."""
    thread = threading.Thread(target=webbrowser.open, args=(address,), name="browser", daemon=True)
    thread.start()
    return thread


def read_line() -> asyncio.Future[str]:
    """Return a future with the next line of stdin, "" at the end of the input."""
    loop = asyncio.get_running_loop()
    line: asyncio.Future[str] = loop.create_future()

    def read() -> None:
        text = sys.stdin.readline(16 * 1024)
        try:
            loop.call_soon_threadsafe(_resolve_line, line, text)
        except RuntimeError:
            pass  # the loop is closed and the future has no reader

    threading.Thread(target=read, name="input", daemon=True).start()
    return line


def _resolve_line(line: asyncio.Future[str], text: str) -> None:
    if not line.done():
        line.set_result(text.strip())
