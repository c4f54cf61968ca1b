"""Hints about a server that was named by its URL: no config file has its name, so commands must name the URL."""

from __future__ import annotations

import re
import shlex


def hint_for_url(hint: str, server: str, url: str) -> str:
    """Return a hint with the commands that name the server `server` replaced by those that accept its URL."""
    name, quoted = re.escape(server), shlex.quote(url)
    hint = re.sub(rf"toolway tools (?:-s|--server) {name}\b", lambda _: f"toolway tools {quoted}", hint)
    hint = re.sub(rf"toolway tools {name}\.", lambda _: f"toolway tools {quoted} ", hint)
    hint = re.sub(rf"toolway status {name}\b", lambda _: f"toolway doctor {quoted}", hint)
    add = f"toolway add {server} {quoted} && toolway login {server}"
    return re.sub(rf"toolway login {name}\b", lambda _: add, hint)


def doctor_command(server: str, url: str = "") -> str:
    """Return the command that finds the cause of a failure: of the server at `url`, or of a configured server."""
    return f"toolway doctor {shlex.quote(url) if url else server}"
