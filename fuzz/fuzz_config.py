"""Fuzz target: configuration files give servers and issues, or raise `ConfigError`."""

from __future__ import annotations

import json
from typing import Any

from harness import Bytes, Sized, fuzz, instrumented

with instrumented(__name__ == "__main__"):
    from toolway.config import loader
    from toolway.config.schema import Server, check_server_name
    from toolway.errors import ConfigError

VARIABLES = {"HOME": "/home/x", "A": "1"}
AS_FILE, AS_VALUE = 255, 254  # first bytes of inputs that are enlarged by repetition
TEXTS = ("command", "cwd", "url", "type", "era", "timeout", "idempotencyMetaKey", "unknown")


def check(data: bytes) -> None:
    source = Bytes(data)
    how, text = source.number(255), source.rest.decode("utf-8", "replace")
    _check_text(_file_of(text) if how == AS_VALUE else text)


def grown(data: bytes) -> Sized | None:
    """Return the check of an input that is repeated to about `size` bytes."""
    source = Bytes(data)
    how, text = source.number(255), source.rest.decode("utf-8", "replace")
    if not text or how not in (AS_FILE, AS_VALUE):
        return None
    if how == AS_FILE:
        return lambda size: _check_text(text * (1 + size // len(text)))
    return lambda size: _check_text(_file_of(text * (1 + size // len(text) // 16)))


def _file_of(text: str) -> str:
    """Return a file with `text` in every place that takes a text."""
    entries: dict[str, Any] = {f"s{n}": {"command": "x", key: text} for n, key in enumerate(TEXTS)}
    lists = {"args": [text], "env": {text: text}, "headers": {text: "x"}, "tools": {text: {"effect": text}}}
    entries |= {f"l{n}": {"command": "x", key: value} for n, (key, value) in enumerate(lists.items())}
    return json.dumps({"mcpServers": {**entries, "line": text, text: {"command": "x", text: 1}}})


def _check_text(text: str) -> None:
    lines = text.count("\n") + 1
    try:
        loaded = loader.parse_config(text, "mcp.json", VARIABLES)
    except ConfigError as error:
        _check_line(error, lines)
        return
    for name, server in loaded.servers.items():
        assert check_server_name(name) == name
        assert isinstance(server, Server) and repr(server)
    for issue in loaded.issues:
        assert issue.severity in ("error", "warning", "note")
        _check_line(issue, lines)


def _check_line(issue: ConfigError | loader.ConfigIssue, lines: int) -> None:
    assert issue.code.startswith(("E-CONFIG", "E-SECRETS")) and str(issue)
    assert issue.line is None or 1 <= issue.line <= lines


if __name__ == "__main__":
    fuzz(check, grown=grown)
