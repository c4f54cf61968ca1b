"""Hints about a server named by URL: it has no entry, so commands must contain the URL."""

from __future__ import annotations

import re
import shlex


def hint_for_url(hint: str, server: str, url: str) -> str:
    """Return a hint with the server's URL in commands instead of its name."""
    name, quoted = re.escape(server), shlex.quote(url)
    hint = re.sub(rf"toolway tools (?:-s|--server) {name}\b", lambda _: f"toolway tools {quoted}", hint)
    hint = re.sub(rf"toolway tools {name}\.", lambda _: f"toolway tools {quoted} ", hint)
    hint = re.sub(rf"toolway show {name}\b", lambda _: f"toolway doctor {quoted}", hint)
    add = f"toolway add {server} {quoted} && toolway login {server}"
    return re.sub(rf"toolway login {name}\b", lambda _: add, hint)


def doctor_command(server: str, url: str = "") -> str:
    """Return the `toolway doctor` command that finds why a server fails: the one at `url`, or the configured one."""
    return f"toolway doctor {shlex.quote(url) if url else server}"
