"""`toolway secrets`: what servers need and no file should hold. A value is typed or piped in, never an argument, and
never shown."""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from toolway.cli.exits import Exit, UsageError
from toolway.cli.output import Output
from toolway.config.references import Reference
from toolway.config.scopes import loaded
from toolway.config.secrets import references
from toolway.errors import ConfigError, NotFound
from toolway.secrets import check_name, open_store, remember
from toolway.security.sealed_tokens import SECRET as KEY_OF_LOGINS

_LONGEST: Final = 64 * 1024  # characters


def set_(output: Output, name: str, extra: str | None) -> Exit:
    """Keep a secret, or another value of it."""
    if extra is not None:
        raise UsageError(
            "a secret is not given on the command line",
            evidence="everybody on this machine can see it there, and the shell keeps it",
            fix=f"toolway secrets set {check_name(name)}, and type it when it is asked for",
        )
    check_name(name)
    value = _value(name)
    store = open_store(os.environ)
    store.set(name, value)
    reference = str(Reference("keyring", name))
    if output.as_json:
        output.facts({"name": name, "kept": store.where, "reference": reference})
    else:
        output.say(f"{name} is kept in {store.where}", "green")
        output.say(f"name it in an entry as {reference}")
    return Exit.OK


def show(output: Output, config: Path | None) -> Exit:
    """The names of all secrets, who uses them, and those that are missing."""
    store = open_store(os.environ)
    names, users = store.names(), _users(output, config)
    missing = sorted(users.keys() - set(names))
    users = {**users, KEY_OF_LOGINS: ["toolway login"]}
    if output.as_json:
        rows = [
            {"name": name, "used_by": users.get(name, []), "missing": name in missing} for name in [*names, *missing]
        ]
        output.facts({"kept": store.where, "secrets": rows})
        return Exit.OK
    if names or missing:
        kept = [(name, ", ".join(users.get(name, [])) or "nobody") for name in names]
        lost = [(name, f"{', '.join(users[name])}, but it is missing: toolway secrets set {name}") for name in missing]
        output.table(("name", "used by"), [*kept, *lost])
        output.say(f"kept in {store.where}", "dim")
    else:
        output.say("there are no secrets; keep one with: toolway secrets set server.NAME")
    return Exit.OK


def remove(output: Output, config: Path | None, name: str) -> Exit:
    """Forget a secret."""
    check_name(name)
    if not open_store(os.environ).delete(name):
        raise NotFound(f"there is no secret {name}", fix="see them all: toolway secrets ls", code="E-SECRETS-NAME")
    users = _users(output, config).get(name, [])
    if output.as_json:
        output.facts({"removed": name, "used_by": users})
    else:
        output.say(f"{name} is forgotten")
        if users:
            output.say(f"it is still named by {', '.join(users)}", "yellow")
    return Exit.OK


def _value(name: str) -> str:
    """What a person types, or what comes through a pipe, without the line break at its end."""
    if sys.stdin.isatty():
        value = getpass.getpass(f"value of {name} (it is not shown): ")
    else:
        value = sys.stdin.read(_LONGEST + 1).removesuffix("\n").removesuffix("\r")
    remember(value)
    if not value or len(value) > _LONGEST:
        why = "it is empty" if not value else f"it is longer than {_LONGEST} characters"
        raise UsageError("this cannot be a secret", evidence=why, fix=f"toolway secrets set {name} < FILE")
    return value


def _users(output: Output, config: Path | None) -> Mapping[str, list[str]]:
    """Which servers name which secret."""
    try:
        servers = loaded(os.environ, Path.cwd(), config).servers
    except ConfigError as exc:
        if exc.code != "E-CONFIG-NONE" and not output.as_json:
            output.say(f"who uses them is not known: {exc.what}", "yellow")
        return {}
    users: dict[str, list[str]] = {}
    for server, entry in servers.items():
        for reference in references(entry):
            if reference.kind == "keyring":
                users.setdefault(reference.what, []).append(server)
    return users
