"""The file of servers as a file: what it says now, what it said before, and the way back.

The same versions that `toolway config history` shows: every change that was made by us left a copy.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from toolway.config import jsonc
from toolway.config.editing import backups
from toolway.config.editing.backups import Backup
from toolway.config.editing.edit import Edit, read_bytes
from toolway.config.editing.write import apply
from toolway.config.formats import Loaded, content, entries_of, normalised, parse, text_of
from toolway.config.mask import masker
from toolway.config.origins import LEVELS, Origin, values
from toolway.config.spec import Server
from toolway.errors import ConfigError, NotFound
from toolway.model import Json


class Files:
    """`loaded` is what is in force; `reload` takes what the file says."""

    def __init__(
        self, loaded: Callable[[], Loaded], reload: Callable[[], Awaitable[Json]], environ: Mapping[str, str]
    ) -> None:
        self._loaded = loaded
        self._reload = reload
        self._environ = environ

    def shown(self) -> Json:
        """The file, its versions, and what is wrong with it. Without secrets."""
        loaded = self._loaded()
        data = read_bytes(self._file) or b""
        versions = [
            {"version": number, "until": each.made.timestamp(), "bytes": each.path.stat().st_size}
            for number, each in enumerate(self._versions(), 1)
        ]
        return {
            "file": os.fspath(self._file),
            "text": _masked(data.decode(errors="replace"), [data]),
            "versions": versions,
            "problems": [
                {"severity": p.severity, "server": p.server, "what": p.what, "fix": p.fix, "line": p.line}
                for p in loaded.problems
            ],
        }

    def origins(self, server: str) -> list[Json]:
        """Where each value of a server's entry is written, in the file that is served or one it is merged with; the
        last that has the entry counts. Without secrets."""
        loaded = self._loaded()
        found: list[Json] = []
        for file in (loaded.file, *loaded.watched):
            try:
                found = _written(file, server) or found
            except ConfigError:
                continue  # what is wrong with it is among the problems
        return found

    def diff(self, number: int) -> Json:
        """What going back to an earlier version would change. Raises `NotFound`."""
        change = self._way_back(number)
        return {"version": number, "diff": _masked(change.diff(), [change.before or b"", change.after])}

    async def roll_back(self, number: int) -> Json:
        """Make the file what it was, and take it. That is a change as well, and can be taken back. Raises `NotFound`,
        and `ConfigError` where the old version cannot be used."""
        change = self._way_back(number)
        apply(change)
        try:
            done = await self._reload()
        except ConfigError:
            apply(Edit(self._file, change.after, change.before or b""))
            raise
        return {"version": number, **done}

    @property
    def _file(self) -> Path:
        return Path(self._loaded().file)

    def _versions(self) -> list[Backup]:
        return backups.of(Path(os.path.realpath(self._file)), backups.folder(self._environ))

    def _way_back(self, number: int) -> Edit:
        found = self._versions()
        if not 0 < number <= len(found):
            raise NotFound(f"there is no earlier version {number}", fix="see them all: toolway config history")
        return Edit(self._file, read_bytes(self._file), found[number - 1].read())


def _written(file: str, server: str) -> list[Json]:
    """Raises `ConfigError`."""
    text = text_of(content(file), file)
    root, entries = entries_of(jsonc.parse(text, file), file)
    lines, where = jsonc.deep_lines(text, LEVELS), Origin("user", file)
    return [
        {"path": ".".join(value.path[1:]), "value": value.shown, "file": file, "line": value.origin.line}
        for name, entry in entries.items()
        if server in (name, normalised(name))
        for value in values(entry, (server,), (*root, name), lines, where)
    ]


def _masked(text: str, versions: list[bytes]) -> str:
    servers: list[Server] = []
    for data in versions:
        try:
            servers += parse(data.decode(errors="replace")).servers.values()
        except ConfigError:
            continue  # it has no servers that we could read
    return masker(servers)(text)
