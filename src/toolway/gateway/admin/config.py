"""History of the configuration file: its text, earlier versions, differences and rollback.

These are the versions of `toolway config history`: every change made by Toolway leaves a backup.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

from toolway.config.editing import document, jsonc
from toolway.config.editing.document import Backup, ConfigDocument, Edit, apply_edit, read_file_bytes
from toolway.config.loader import (
    LoadedConfig,
    decode_config,
    find_server_map,
    normalize_name,
    parse_config,
    read_config_bytes,
)
from toolway.config.masking import build_masker
from toolway.config.schema import Server
from toolway.config.scopes import MAX_LINE_LEVELS, Provenance, list_values
from toolway.errors import ConfigError, NotFound
from toolway.types import Json

#: Settings of a server that `/admin` can change in the file, with the types of their values.
EDITABLE_SETTINGS: Final[Mapping[str, type | tuple[type, ...]]] = {
    "enabled": bool,
    "lazy": bool,
    "timeout": (str, int, float),
    "startTimeout": (str, int, float),
    "idleTimeout": (str, int, float),
}


class ConfigHistory:
    """Text, versions, diffs and rollback of the gateway's configuration file, for `/admin`.

    `get_loaded` returns the configuration in use; `reload` makes the gateway read and apply the file.
    """

    def __init__(
        self, get_loaded: Callable[[], LoadedConfig], reload: Callable[[], Awaitable[Json]], environ: Mapping[str, str]
    ) -> None:
        self._get_loaded = get_loaded
        self._reload = reload
        self._environ = environ

    def to_json(self) -> Json:
        """Return text, versions and problems of the configuration file, with secrets masked."""
        loaded = self._get_loaded()
        data = read_file_bytes(self._file) or b""
        versions = [
            {"version": number, "until": each.created.timestamp(), "bytes": each.path.stat().st_size}
            for number, each in enumerate(self._versions(), 1)
        ]
        return {
            "file": os.fspath(self._file),
            "text": _mask_secrets(data.decode(errors="replace"), [data]),
            "versions": versions,
            "problems": [
                {"severity": p.severity, "server": p.server, "message": p.message, "hint": p.hint, "line": p.line}
                for p in loaded.issues
            ],
        }

    def list_held(self) -> list[Json]:
        """Return the entries of the configuration that wait for approval, each with the command that reviews it."""
        issues = [each.issue for each in self._get_loaded().held]
        return [
            {
                "server": each.server,
                "message": each.message,
                "detail": each.detail,
                "hint": each.hint,
                "file": each.file,
                "line": each.line,
            }
            for each in issues
        ]

    def held_servers(self) -> list[str]:
        """Return the names of the servers whose entries wait for approval."""
        return [each.server for each in self._get_loaded().held]

    def value_origins(self, server: str) -> list[Json]:
        """Return the file and line of each value of a server's entry, with secrets masked.

        Reads the served file and the files merged into it. The last file that has the entry wins.
        """
        loaded = self._get_loaded()
        found: list[Json] = []
        for file in (loaded.file, *loaded.watched_files):
            try:
                found = _entry_values(file, server) or found
            except ConfigError:
                continue  # the error is already among the problems
        return found

    def diff(self, number: int) -> Json:
        """Return the diff that a rollback to version `number` of the configuration file would apply.

        Raises `NotFound` if there is no such version.
        """
        edit = self._rollback_edit(number)
        return {"version": number, "diff": _mask_secrets(edit.diff(), [edit.before or b"", edit.after])}

    async def roll_back(self, number: int) -> Json:
        """Restore version `number` of the configuration file and reload the gateway.

        The rollback itself can be rolled back. Raises `NotFound` if there is no such version. Raises `ConfigError` if
        it is invalid; the file is then unchanged.
        """
        return {"version": number, **await self._apply(self._rollback_edit(number))}

    async def remove_server(self, name: str) -> Json:
        """Remove the entry of a server from the configuration file and reload the gateway. It can be rolled back.

        Raises `NotFound` if the file has no such entry. Raises `ConfigError` if the result is invalid; the file is then
        unchanged.
        """
        document, path = self._open_entry(name)
        document.remove(path)
        return {"removed": name, **await self._apply(document.to_edit())}

    async def change_server(self, name: str, changes: Json) -> Json:
        """Change settings of a server in the configuration file and reload the gateway. None removes a setting.

        Only `EDITABLE_SETTINGS` can be changed: none of them decides what is started, or who gets a secret. Raises
        `ValueError`, `NotFound` or `ConfigError`; the file is then unchanged.
        """
        if unknown := sorted(changes.keys() - EDITABLE_SETTINGS.keys()):
            raise ValueError(f"{unknown[0][:50]} cannot be changed here: use toolway edit {name}")
        for key, value in changes.items():
            if value is not None and not isinstance(value, EDITABLE_SETTINGS[key]):
                raise ValueError(f"{key} has the wrong type")
        document, path = self._open_entry(name)
        for key, value in changes.items():
            if value is not None:
                document.set((*path, key), value)
            elif document.get((*path, key)) is not None:
                document.remove((*path, key))
        if changes.get("enabled") is not None and document.get((*path, "disabled")) is not None:
            document.remove((*path, "disabled"))  # another spelling
        return {"server": name, **await self._apply(document.to_edit())}

    def _open_entry(self, name: str) -> tuple[ConfigDocument, tuple[str | int, ...]]:
        """Return the configuration file for editing, and the key path of a server's entry. Raises `NotFound`."""
        document = ConfigDocument(self._file)
        root, entries = find_server_map(jsonc.parse_jsonc(document.text, str(self._file)), str(self._file))
        written = next((each for each in entries if name in (each, normalize_name(each))), None)
        if written is None or not isinstance(document.get((*root, written)), dict):
            raise NotFound(
                f"{name} has no entry of its own in {self._file}",
                server=name,
                hint=f"toolway config show {name} --origin",
            )
        return document, (*root, written)

    async def _apply(self, edit: Edit) -> Json:
        """Write an edit and reload the gateway. If it rejects the file, the file gets its old content back."""
        apply_edit(edit)
        try:
            return await self._reload()
        except ConfigError:
            apply_edit(Edit(self._file, edit.after, edit.before or b""))
            raise

    @property
    def _file(self) -> Path:
        return Path(self._get_loaded().file)

    def _versions(self) -> list[Backup]:
        return document.list_backups(Path(os.path.realpath(self._file)), document.default_backup_folder(self._environ))

    def _rollback_edit(self, number: int) -> Edit:
        found = self._versions()
        if not 0 < number <= len(found):
            raise NotFound(f"unknown version {number}", hint="list all versions: toolway config history")
        return Edit(self._file, read_file_bytes(self._file), found[number - 1].read())


def _entry_values(file: str, server: str) -> list[Json]:
    """Return the values of a server's entry in the configuration file `file`, with line numbers.

    Raises `ConfigError` if the file cannot be read or parsed.
    """
    text = decode_config(read_config_bytes(file), file)
    root, entries = find_server_map(jsonc.parse_jsonc(text, file), file)
    lines, origin = jsonc.find_key_lines(text, MAX_LINE_LEVELS), Provenance("user", file)
    return [
        {"path": ".".join(value.path[1:]), "value": value.masked_json, "file": file, "line": value.origin.line}
        for name, entry in entries.items()
        if server in (name, normalize_name(name))
        for value in list_values(entry, (server,), (*root, name), lines, origin)
    ]


def _mask_secrets(text: str, versions: list[bytes]) -> str:
    """Mask in `text` the secrets of all servers that any of these versions of the file defines."""
    servers: list[Server] = []
    for data in versions:
        try:
            servers += parse_config(data.decode(errors="replace")).servers.values()
        except ConfigError:
            continue  # not parseable, so it defines no servers
    return build_masker(servers)(text)
