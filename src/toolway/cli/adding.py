"""`toolway add`: a URL, a command, a package or a bundle becomes an entry."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from toolway.cli.changing import allowed_in, entries_in, make_own, written_to
from toolway.cli.exits import Exit, UsageError
from toolway.cli.moving import moved_secrets
from toolway.cli.options import Session
from toolway.cli.output import problem_facts
from toolway.cli.own_file import file_of_scope
from toolway.cli.showing import hide_secrets, tilde
from toolway.config.addresses import names_inside
from toolway.config.entries import read_entry
from toolway.config.formats import normalised
from toolway.config.spec import check_server_name
from toolway.errors import ConfigError

_URL: Final = re.compile(r"https?://", re.IGNORECASE)
_PACKAGE: Final = re.compile(r"(pypi|npm):(.+)")
_API: Final = re.compile(r"openapi:(.+)")
_FILES: Final = (".mcpb", ".dxt", "server.json")
_RUNNERS: Final = frozenset({"npx", "uvx", "node", "python", "python3", "docker", "podman", "bunx", "deno", "uv", "sh"})
_USUAL_ENDS: Final = re.compile(r"^(?:mcp-server-|server-|mcp-)|(?:-mcp-server|-mcp|-server)$")
_HOW: Final = (
    "toolway add NAME -- COMMAND …, toolway add URL, or pypi:PACKAGE, npm:PACKAGE, openapi:DOCUMENT, "
    "a .mcpb or server.json file"
)


def add(
    session: Session,
    words: Sequence[str],
    *,
    env: Sequence[str],
    headers: Sequence[str],
    cwd: str | None,
    scope: str | None,
    answers: Sequence[str],
    offer: int,
    replace: bool,
    plain: bool,
    dry_run: bool,
) -> Exit:
    """Write a new entry. Tokens among its values are kept in the store, and the entry names them."""
    output = session.output
    if words[-1].endswith(_FILES):
        from toolway.cli.bundles import entry_of

        told = dict(_pair(each, "=", "--set NAME=VALUE") for each in answers)
        name, entry = entry_of(output, Path(words[-1]), told, offer, dry_run=dry_run)
        name = words[0] if len(words) > 1 else name
    else:
        name, entry = understood(words)
    check_server_name(name)
    entry |= _options(env, headers, cwd)
    read_entry(entry, _Everything())  # raises where it could not be used
    file = file_of_scope(session.where, scope)
    taken = {normalised(each): each for each in entries_in(file)}
    if name in taken and not replace:
        raise ConfigError(
            f"there is a server {name!r} already",
            file=str(file),
            fix=f"give it another name, or replace it: toolway add --replace {name} …",
            code="E-CONFIG-NAME",
        )
    if not plain and not dry_run:
        entry = moved_secrets(output, {name: entry})[name]
    inside = names_inside({name: entry}, allowed_in(file))
    change = written_to(file, {taken.get(name, name): entry}).edit
    hide_secrets(output, change)
    facts = make_own(output, change, dry_run=dry_run)
    if output.as_json:
        output.facts({"server": name, "problems": [problem_facts(each) for each in inside], **facts})
    elif not dry_run:
        output.say(f"{name} is added to {tilde(file)}", "green")
        output.problems(inside)
        output.say(f"see whether it works: toolway doctor {name}")
    return Exit.OK


def understood(words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The name and the entry that are meant. Raises `UsageError`."""
    if len(words) == 1:
        return _source(words[0])
    if len(words) == 2 and _is_source(words[1]):
        return words[0], _source(words[1])[1]
    if words[0] in _RUNNERS or _is_source(words[0]) or words[1].startswith("-"):
        raise UsageError(f"{words[0]!r} is no name for a server", fix=f"toolway add NAME -- {' '.join(words)}")
    return words[0], {"command": words[1], "args": list(words[2:])} if words[2:] else {"command": words[1]}


def _is_source(word: str) -> bool:
    return bool(_URL.match(word) or _PACKAGE.fullmatch(word) or _API.fullmatch(word))


def _source(word: str) -> tuple[str, dict[str, Any]]:
    if _URL.match(word):
        return _name_of_host(word), {"url": word}
    package = _PACKAGE.fullmatch(word)
    if package is not None:
        return _of_package(package[1], package[2])
    api = _API.fullmatch(word)
    if api is not None:
        return _of_document(api[1])
    raise UsageError(f"{word!r} is nothing that can be added", fix=_HOW)


def _of_document(place: str) -> tuple[str, dict[str, Any]]:
    """An HTTP API, by the address or the file of its document."""
    if _URL.match(place):
        return _name_of_host(place), {"type": "openapi", "openapi": {"url": place}}
    file = Path(place).expanduser().absolute()
    return normalised(file.stem.removesuffix(".openapi")), {"type": "openapi", "openapi": {"file": str(file)}}


def _of_package(registry: str, package: str) -> tuple[str, dict[str, Any]]:
    bare = re.split(r"==|(?<=.)@", package)[0]
    name = _USUAL_ENDS.sub("", normalised(bare.rpartition("/")[2])) or normalised(bare)
    if registry == "npm":
        return name, {"command": "npx", "args": ["-y", package]}
    return name, {"command": "uvx", "args": [package.replace("==", "@")]}


def _name_of_host(url: str) -> str:
    """`https://mcp.sentry.dev/mcp` is called sentry."""
    host = urlsplit(url).hostname or ""
    parts = [part for part in host.split(".") if part not in ("mcp", "www", "api")]
    numeric = all(part.isdecimal() for part in parts)
    return normalised(host if numeric or len(parts) < 2 else parts[-2])


def _options(env: Sequence[str], headers: Sequence[str], cwd: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if env:
        found["env"] = dict(_pair(each, "=", "-e NAME=value") for each in env)
    if headers:
        found["headers"] = dict(_pair(each, ":", "-H 'Name: value'") for each in headers)
    if cwd:
        found["cwd"] = str(Path(cwd).absolute())
    return found


def _pair(text: str, sign: str, how: str) -> tuple[str, str]:
    name, found, value = text.partition(sign)
    if not found or not name.strip():
        raise UsageError("a value has no name", fix=f"write {how}")
    return name.strip(), value.strip()


class _Everything(dict[str, str]):
    """Variables that are all set: whether they are is no question of the entry."""

    def get(self, key: str, default: Any = None) -> Any:
        return "x"

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> str:
        return "x"
