"""The files of a user, a project, and a user in a project, found and merged as hosts do it.

    user      $XDG_CONFIG_HOME/toolway/mcp.json
    project   mcp.json or .mcp.json of the project; used when its exact content was approved (`approvals.py`)
    local     $XDG_CONFIG_HOME/toolway/projects/<project>/mcp.json: one person's own, for one project. It is not in the
              project's folder, so that no repository can bring one

A later one goes before an earlier one, by whole entries: a server is what one file says, never a mixture of two.
One file that cannot be read does not hide the others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from toolway.addresses.policy import PUBLIC, Addresses
from toolway.config import jsonc
from toolway.config.addresses import allowing
from toolway.config.approvals import Approvals, digest, open_approvals
from toolway.config.find import PROJECT_FILES, VARIABLE, Places, Scope, find, nothing_found
from toolway.config.formats import OUR_BLOCK, Loaded, content, entries_of, normalised, parse, read, text_of
from toolway.config.gateway import GatewaySettings, read_block
from toolway.config.origins import LEVELS, Origin, Value, place, values
from toolway.config.problems import Problem
from toolway.config.spec import Server
from toolway.errors import ConfigError

__all__ = ["APPROVAL", "Merged", "Places", "Waiting", "find", "in_folder", "load", "loaded"]
APPROVAL: Final = "E-CONFIG-APPROVAL"


@dataclass(frozen=True, slots=True)
class Waiting:
    """A file of a project that is not used, because nobody approved what it says now."""

    path: Path
    content: bytes = field(repr=False)
    changed: bool  # another content of it was approved once

    @property
    def digest(self) -> str:
        return digest(self.content)


@dataclass(frozen=True, slots=True)
class Merged:
    """What all files say together."""

    places: Places
    servers: dict[str, Server] = field(repr=False)
    problems: tuple[Problem, ...]
    gateway: GatewaySettings
    files: tuple[Origin, ...]  # that were read, lowest first
    values: tuple[Value, ...]  # each value that is in force, with its origin
    shadowed: Mapping[str, tuple[Origin, ...]]  # by server: entries that another goes before
    waiting: tuple[Waiting, ...]  # for approval
    broken: tuple[ConfigError, ...]  # files that cannot be used at all
    addresses: Addresses = PUBLIC  # what all of them allow

    @property
    def origins(self) -> dict[tuple[str, ...], Origin]:
        return {value.path: value.origin for value in self.values}


def load(environment: Mapping[str, str], directory: Path) -> Merged:
    """All that is found, merged. A project's file that is not approved is not used, and `waiting` has it."""
    return _Merging(find(environment, directory), environment).merged()


def loaded(environment: Mapping[str, str], directory: Path, named: Path | None = None) -> Loaded:
    """The servers to use: of the file that is named, be it by `$TOOLWAY_CONFIG`, which needs no approval, or of all
    scopes. Raises `ConfigError` where there is nothing that can be used."""
    if named is None and environment.get(VARIABLE):
        named = Path(environment[VARIABLE]).expanduser()
    if named is not None:
        return read(named, environment)
    merged = load(environment, directory)
    if not merged.files and not merged.waiting and not merged.broken:
        raise nothing_found(merged.places)
    if not merged.servers:
        _raise_why(merged)
    main = merged.files[0].file if merged.files else os.fspath(merged.places.user)
    watched = [os.fspath(path) for path in _watched(merged.places, environment)]
    again = partial(loaded, environment, directory)
    return Loaded(merged.servers, merged.problems, main, merged.gateway, again, tuple(watched), merged.addresses)


def _raise_why(merged: Merged) -> None:
    """With no server at all, what is wrong is more than a remark."""
    if merged.broken:
        raise merged.broken[0]
    if merged.waiting:
        problem = _waits(merged.waiting[0])
        raise ConfigError(problem.what, file=problem.file, evidence=problem.evidence, fix=problem.fix, code=APPROVAL)


def _watched(places: Places, environment: Mapping[str, str]) -> Iterator[Path]:
    """What can change what is loaded: every file, there or not yet, and the approvals."""
    yield from (places.user, *(places.root / name for name in PROJECT_FILES), places.local)
    try:
        yield open_approvals(environment).file
    except ConfigError:
        return


class _Merging:
    """Files are taken one after the other, lowest first."""

    def __init__(self, places: Places, environment: Mapping[str, str]) -> None:
        self._places = places
        self._environment = environment
        self._servers: dict[str, Server] = {}
        self._values: dict[str, list[Value]] = {}
        self._places_of: dict[str, Origin] = {}
        self._shadowed: dict[str, tuple[Origin, ...]] = {}
        self._block: dict[str, Any] = {}
        self._problems: list[Problem] = []
        self._files: list[Origin] = []
        self._waiting: list[Waiting] = []
        self._broken: list[ConfigError] = []
        self._addresses = PUBLIC

    def merged(self) -> Merged:
        for scope, path in self._places.all():
            if path.is_file():
                try:
                    self._take(scope, path)
                except ConfigError as exc:
                    self._broken.append(exc)
                    self._problems.append(Problem.of(exc))
        return Merged(
            self._places,
            self._servers,
            tuple(self._problems),
            read_block(self._block, self._environment),  # each file's own was read before, so it can be
            tuple(self._files),
            tuple(value for values in self._values.values() for value in values),
            self._shadowed,
            tuple(self._waiting),
            tuple(self._broken),
            self._addresses,
        )

    def _take(self, scope: Scope, path: Path) -> None:
        """What is approved is what is parsed: the file is read once. Raises `ConfigError`."""
        file = os.fspath(path)
        data = content(file)
        if scope == "project" and not self._approved(path, data):
            return
        text = text_of(data, file)
        loaded = parse(text, file, self._environment)
        origin = Origin(scope, file)
        self._files.append(origin)
        self._problems.extend(loaded.problems)
        self._addresses = self._addresses.joined(loaded.addresses)
        self._add(loaded, text, origin)

    def _approved(self, path: Path, data: bytes) -> bool:
        try:
            approvals = open_approvals(self._environment)
        except ConfigError:
            approvals = Approvals(Path(os.devnull))
        if approvals.approved(path, data):
            return True
        waiting = Waiting(path, data, os.path.realpath(path) in approvals.all())
        self._waiting.append(waiting)
        self._problems.append(_waits(waiting))
        return False

    def _add(self, loaded: Loaded, text: str, origin: Origin) -> None:
        document = jsonc.parse(text, origin.file)
        lines = jsonc.deep_lines(text, LEVELS)
        root, entries = entries_of(document, origin.file)
        for written in sorted(
            entries, key=lambda each: each in loaded.servers
        ):  # a name as it stands goes last, and wins
            name = written if written in loaded.servers else normalised(written)
            if name in loaded.servers:
                self._put(name, loaded.servers[name], place(origin, (*root, written), lines))
                self._values[name] = values(entries[written], (name,), (*root, written), lines, origin)
        block = document.value.get(OUR_BLOCK)
        for key, value in block.items() if isinstance(block, dict) else ():
            found = values(value, (OUR_BLOCK, key), (OUR_BLOCK, key), lines, origin)
            self._put_setting(key, value, found)

    def _put(self, name: str, server: Server, origin: Origin) -> None:
        before = self._places_of.get(name)
        if before is not None and before.file != origin.file:
            self._shadowed[name] = (*self._shadowed.get(name, ()), before)
            evidence = f"that of {origin} goes before it"
            self._problems.append(
                Problem(
                    name,
                    f"the {before.scope} entry of {name} is not used",
                    evidence,
                    "",
                    "E-CONFIG-SCOPE",
                    "note",
                    before.file,
                    before.line,
                )
            )
        self._places_of[name] = origin
        self._servers.pop(name, None)
        # A file may use what those before it allow; what it allows itself is not for their servers.
        server = allowing(server, self._addresses)
        self._servers[name] = server if origin.scope == "user" else in_folder(server, self._places.root)

    def _put_setting(self, key: str, value: Any, found: list[Value]) -> None:
        """Of `gateway` and `groups` each key counts for itself, so that a project adds a group and loses none."""
        before, kept = self._block.get(key), self._values.get(OUR_BLOCK, [])
        if isinstance(value, dict) and isinstance(before, dict):
            value, new = {**before, **value}, {each.path[:3] for each in found}
            kept = [each for each in kept if each.path[:3] not in new]
        else:
            kept = [each for each in kept if each.path[1] != key]
        self._block[key] = value
        self._values[OUR_BLOCK] = kept + found


def in_folder(server: Server, folder: Path) -> Server:
    """A command of a project runs in the project's folder, wherever we are."""
    if server.command is None:
        return server
    return replace(server, cwd=os.fspath(folder / server.cwd) if server.cwd else os.fspath(folder))


def _waits(waiting: Waiting) -> Problem:
    why = "its content has changed since it was approved" if waiting.changed else "nobody has approved it yet"
    return Problem(
        "",
        f"{waiting.path} is not used until you approve it",
        evidence=f"{why}; it is the project's, and can start programs",
        fix="look at it: toolway approve",
        code=APPROVAL,
        file=os.fspath(waiting.path),
    )
