"""Open a link to the dashboard in the browser."""

from __future__ import annotations

import html
import os
import threading
from pathlib import Path

from toolway.cli.commands.login import can_open_browser, start_browser
from toolway.cli.output import Output
from toolway.gateway.state_dir import StateDir
from toolway.secrets.encrypted_file import write_private


def open_dashboard(output: Output, link: str, *, browser: bool) -> threading.Thread | None:
    """Open a one-time dashboard link in the browser if possible, and print it.

    Return the thread that starts the browser; None without a browser.
    """
    starting = None
    if browser and can_open_browser():
        starting = start_browser(_write_redirect_page(link).as_uri())
        output.info("the dashboard opens in your browser; if it does not, open this link:", "dim")
    else:
        output.info("open this link; it works once, within two minutes:", "dim")
    output.print_line(link)
    return starting


def _write_redirect_page(link: str) -> Path:
    """Write an HTML page that redirects to the dashboard link, and return its path.

    Every user of the machine can read a browser's command line, but only the owner can read this file.
    """
    file = StateDir.default(os.environ).folder / "open.html"
    escaped = html.escape(link, quote=True)
    head = f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={escaped}">'
    write_private(file, f'{head}<title>Toolway</title><a href="{escaped}">Open the dashboard</a>\n'.encode())
    return file
