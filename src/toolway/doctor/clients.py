"""The files of other clients, looked at as those clients read them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from toolway.addresses.policy import Addresses
from toolway.config import scopes
from toolway.config.addresses import allowing
from toolway.config.approvals import open_approvals
from toolway.config.clients.catalog import CLIENTS, client_named
from toolway.config.clients.importing import find, read
from toolway.config.clients.values import Client, Entry, Place
from toolway.config.entries import read_entry
from toolway.config.problems import Problem
from toolway.doctor.file_checks import Reader, look
from toolway.doctor.own import Scene
from toolway.doctor.report import Check, Subject
from toolway.doctor.targets import Target
from toolway.errors import ConfigError

#: Clients that read JSON with comments.
_COMMENTS: Final = frozenset({"vscode", "zed", "opencode", "kilo", "gemini-cli", "amp", "cursor"})
#: Clients that are started from a terminal, and so have its PATH.
_TERMINALS: Final = frozenset(
    {
        *("claude-code", "codex", "gemini-cli", "copilot-cli", "opencode", "goose", "amp", "crush", "kimi", "vibe"),
        *("grok", "factory", "kilo"),
    }
)


def of_client(name: str, environ: Mapping[str, str], directory: Path, *, project: bool = False) -> Scene:
    """The files of one client that exist. A client without any is told of, too. Raises `ConfigError` for a client that
    nobody knows. With `project` the servers of a project's file are started even if nobody approved it."""
    client = client_named(name)
    places = [place for place in find(environ, directory) if place.client == name]
    found = _scene([place for place in places if place.exists], environ, directory, project)
    if not found.files:
        looked = "\n".join(str(place.path) for place in places)
        check = Check("file", "fail", f"{client.title} has no file of servers here", f"looked for\n{looked}")
        found.files.append(Subject("file", name, (replace(check, code="E-CONFIG-NONE"),)))
    return found


def of_all_clients(environ: Mapping[str, str], directory: Path, *, project: bool = False) -> Scene:
    return _scene([place for place in find(environ, directory) if place.exists], environ, directory, project)


def _scene(places: Sequence[Place], environ: Mapping[str, str], directory: Path, project: bool) -> Scene:
    found = Scene(addresses=scopes.load(environ, directory).addresses)
    seen: set[str] = set()
    for place in places:
        client = CLIENTS[place.client]
        checks, usable = _file_checks(place, client)
        source = os.fspath(place.path)
        if source not in seen:
            found.files.append(Subject("file", f"{client.title}: {place.path.name}", tuple(checks), source=source))
        seen.add(source)
        if usable:
            held = place.scope == "project" and not project and not _approved(place, environ)
            found.targets += [replace(each, held=held) for each in _targets(place, client, environ, found)]
    return found


def _approved(place: Place, environ: Mapping[str, str]) -> bool:
    """Whether a person has seen exactly this: whoever can change a repository can change the file in it."""
    try:
        return open_approvals(environ).approved(place.path, place.path.read_bytes())
    except (ConfigError, OSError):
        return False


def _file_checks(place: Place, client: Client) -> tuple[list[Check], bool]:
    if place.format != "json":
        return [Check("file", "ok", f"{place.path.name}")], True
    reader = Reader(client.title, place.root[:1], client.name in _COMMENTS, mark=False, bare=False)
    file = look(place.path, reader)
    return file.checks, file.entries is not None


def _targets(place: Place, client: Client, environ: Mapping[str, str], scene: Scene) -> Iterator[Target]:
    try:
        imported = read(place)
    except ConfigError as exc:
        check = Check("file", "fail", exc.what, exc.evidence, exc.fix, code=exc.code)
        scene.files.append(Subject("file", client.title, (check,), source=os.fspath(place.path)))
        return
    for problem in imported.problems:
        if not any(problem.server == entry.name for entry in imported.entries):
            yield _target(place, client, problem.server or place.path.name, None, (problem,))
    for entry in imported.entries:
        problems = [each for each in imported.problems if each.server == entry.name]
        problems += _spelling(client, entry)
        yield _of_entry(place, client, entry, problems, environ, scene.addresses)


def _of_entry(
    place: Place,
    client: Client,
    entry: Entry,
    problems: list[Problem],
    environ: Mapping[str, str],
    addresses: Addresses,
) -> Target:
    server = None
    try:
        server, said = read_entry(entry.value, environ)
        server = allowing(server, addresses)
        problems += said
    except ConfigError as exc:
        problems.append(Problem.of(exc, entry.name))
    if server is not None and server.command is not None and place.directory is not None:
        server = replace(server, cwd=os.fspath(place.directory / (server.cwd or "")))
    target = _target(place, client, entry.name, entry, tuple(problems))
    return replace(target, server=server)


def _target(place: Place, client: Client, name: str, entry: Entry | None, problems: tuple[Problem, ...]) -> Target:
    written = entry.written if entry is not None and isinstance(entry.written, Mapping) else {}
    return Target(
        name=name,
        server=None,
        file=os.fspath(place.path),
        line=entry.line if entry is not None else None,
        root=place.root,
        written_name=name,
        written=written,
        client=client.name,
        title=client.title,
        desktop=client.name not in _TERMINALS,
        problems=problems,
    )


def _spelling(client: Client, entry: Entry) -> Iterator[Problem]:
    """The word for the transport, which each client spells in its own way and ignores in every other."""
    types = client.dialect.types
    if not isinstance(entry.written, Mapping) or not types:
        return
    written = entry.written.get(client.dialect.type_key)
    remote = isinstance(entry.value.get("url"), str)
    wanted = types.get("http" if remote else "stdio")
    if isinstance(written, str) and written not in types.values():
        yield Problem(
            entry.name,
            f'{client.title} does not know the type "{written}"',
            evidence=f"it knows {', '.join(dict.fromkeys(types.values()))}",
            fix=f'write "{client.dialect.type_key}": "{wanted}"',
            code="E-CONFIG-TYPE",
        )
    elif written is None and remote and client.name == "claude-code":
        what = f"{client.title} takes an entry without a type for a command"
        yield Problem(entry.name, what, "it has a url", f'add "type": "{wanted}"', "E-CONFIG-TYPE")
