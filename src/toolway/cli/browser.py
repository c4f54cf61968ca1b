"""Bringing a person to a web address. The address comes from a server: it is checked and respelled before any program
sees it, and no shell ever does."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import webbrowser
from typing import Final
from urllib.parse import quote

from toolway.security.urls import check_url

_KEPT: Final = ":/?#[]@!*+,;=&%"  # beside letters, digits and `-._~`; no quote, bracket, dollar or backslash


def safe(url: str) -> str:
    """The same address with nothing in it that means something to a shell. Raises `NotAuthorized`."""
    check_url(url)
    return quote(url, safe=_KEPT)


def can_open() -> bool:
    """Whether a browser with a window can be had: one in this terminal would take it from us."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"))


def open_in_browser(url: str) -> None:
    """Some browsers do not come back before they are closed: nobody waits for them."""
    threading.Thread(target=webbrowser.open, args=(safe(url),), name="browser", daemon=True).start()


def typed_line() -> asyncio.Future[str]:
    """The next line that a person types, or nothing at the end of the input."""
    loop = asyncio.get_running_loop()
    line: asyncio.Future[str] = loop.create_future()

    def read() -> None:
        said = sys.stdin.readline(16 * 1024)
        try:
            loop.call_soon_threadsafe(_settle, line, said)
        except RuntimeError:
            pass  # the loop is gone: nobody waits

    threading.Thread(target=read, name="input", daemon=True).start()
    return line


def _settle(line: asyncio.Future[str], said: str) -> None:
    if not line.done():
        line.set_result(said.strip())
