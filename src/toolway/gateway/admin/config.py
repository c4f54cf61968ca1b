"""The config file's history: its text, earlier versions, diffs and rollback.

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
    TOOLWAY_BLOCK,
    LoadedConfig,
    decode_config,
    find_server_map,
    normalize_name,
    parse_config,
    read_config_bytes,
)
from toolway.config.masking import build_masker
from toolway.config.schema import Server, check_server_name
from toolway.config.scopes import MAX_LINE_LEVELS, Provenance, list_values
from toolway.errors import ConfigError, NotFound
from toolway.gateway.admin.config_text import find_changes, sort_changes
from toolway.types import Json

#: Settings of a server that `/admin` can change in the file, with the types of their values.
EDITABLE_SETTINGS: Final[Mapping[str, type | tuple[type, ...]]] = {
    "enabled": bool,
    "lazy": bool,
    "timeout": (str, int, float),
    "startTimeout": (str, int, float),
    "idleTimeout": (str, int, float),
    "deniedTools": list,  # it can only grow: what you hid stays hidden
}
MAX_SUMMARIES: Final = 20  # versions whose changes are summarized: each is parsed for it
MAX_SUMMARY_PARTS: Final = 8  # of one version
MAX_PATTERNS: Final = 500  # of a toolset, or names of a deny list
_TOOLSET_KEYS: Final[Mapping[str, type]] = {"tools": list, "search": bool}


class ConfigHistory:
    """Text, versions, diffs and rollback of the gateway's config file, for `/admin`.

    `get_loaded` returns the configuration in use; `reload` makes the gateway read and apply the file.
    """

    def __init__(
        self, get_loaded: Callable[[], LoadedConfig], reload: Callable[[], Awaitable[Json]], environ: Mapping[str, str]
    ) -> None:
        self._get_loaded = get_loaded
        self._reload = reload
        self._environ = environ

    def to_json(self) -> Json:
        """Return the configuration file's text, versions, and problems, with secrets masked."""
        loaded = self._get_loaded()
        data = read_file_bytes(self._file) or b""
        versions, newer = [], data
        for number, each in enumerate(self._versions(), 1):
            row: Json = {"version": number, "until": each.created.timestamp(), "bytes": each.path.stat().st_size}
            if number <= MAX_SUMMARIES:
                older = each.read()
                row["changes"], newer = summarize_changes(older, newer), older
            versions.append(row)
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
        """Return the configuration entries that need review, each with the command that reviews it."""
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
        """Return the names of the servers whose entries need review."""
        return [each.server for each in self._get_loaded().held if each.kind == "server"]

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
        """Return the diff that rolling back to version `number` would apply.

        Raises `NotFound` if no such version exists.
        """
        edit = self._rollback_edit(number)
        return {"version": number, "diff": _mask_secrets(edit.diff(), [edit.before or b"", edit.after])}

    async def roll_back(self, number: int) -> Json:
        """Restore version `number` of the config file and reload the gateway.

        The rollback itself can be rolled back. Raises `NotFound` if no such version exists. Raises `ConfigError` if
        it is invalid; the file is then unchanged.
        """
        return {"version": number, **await self._apply(self._rollback_edit(number))}

    async def remove_server(self, name: str) -> Json:
        """Remove a server's entry from the config file and reload the gateway. It can be rolled back.

        Raises `NotFound` if the file has no such entry. Raises `ConfigError` if the result is invalid; the file is then
        unchanged.
        """
        document, path = self._open_entry(name)
        document.remove(path)
        return {"removed": name, **await self._apply(document.to_edit())}

    async def add_server(self, name: str, entry: Json, *, preview: bool = False) -> Json:
        """Add a server's entry to the config file and reload the gateway, or only return the diff.

        The caller has already checked that the admission rules allow the entry. If the entry runs a command or sends
        a secret, a user must also review it on this machine, like every entry that another program writes. Raises
        `ConfigError` if the name is invalid or taken; the file is then unchanged.
        """
        check_server_name(name)
        document = ConfigDocument(self._file)
        root, entries = find_server_map(jsonc.parse_jsonc(document.text, str(self._file)), str(self._file))
        if name in map(normalize_name, entries) or name in self._get_loaded().servers:
            raise ConfigError(f"server {name} already exists", hint="pick another name", code="E-CONFIG-NAME")
        if not isinstance(document.get(root), dict):
            raise ConfigError(f"the servers of {self._file} are a list", hint=f"add it there: toolway edit {name}")
        document.set((*root, name) if root or entries else ("mcpServers", name), entry)
        if preview:
            return {"server": name, "diff": self._preview(document.to_edit())}
        result = await self._apply(document.to_edit())
        held = name in self.held_servers()
        return {"server": name, "needs_review": held, "hint": f"toolway trust {name}" if held else "", **result}

    async def set_toolset(self, name: str, changes: Json | None, *, preview: bool = False) -> Json:
        """Add, change, or remove (None) a toolset in the configuration file and reload it, or only return the diff.

        Settings of the toolset that `changes` does not name stay as they are. Raises `ValueError`, `NotFound`, or
        `ConfigError`; the file is then unchanged.
        """
        document = ConfigDocument(self._file)
        path = (TOOLWAY_BLOCK, "toolsets", name)
        known = document.get(path)
        if changes is None:
            if known is None:
                raise NotFound(f"{self._file} has no toolset {name!r}", hint="see your toolsets: toolway config")
            document.remove(path)
        else:
            _check_types(changes, _TOOLSET_KEYS, "a toolset has only tools and search here: use toolway edit")
            document.set(path, {**(known if isinstance(known, dict) else {}), **changes})
        edit = document.to_edit()
        if preview:
            return {"toolset": name, "diff": self._preview(edit)}
        return {"toolset": name, **await self._apply(edit)}

    async def change_text(
        self, before: str, after: str, admit: Callable[[str, Json], None], *, preview: bool = False
    ) -> Json:
        """Apply a user's edits to the config file's text, or only return the diff.

        `before` is the text that `to_json` returned. `admit` raises `ConfigError` if the entry of a new server is not
        allowed. Comments are not changed. Raises `ValueError` or `ConfigError`; the file is then unchanged.
        """
        document = ConfigDocument(self._file)
        shown = _mask_secrets(document.text, [document.text.encode()])
        if before != shown:
            raise ConfigError("the file changed while you were editing it", hint="reload it and make your change again")
        root, entries = find_server_map(jsonc.parse_jsonc(shown, str(self._file)), str(self._file))
        if not isinstance(document.get(root), dict):
            raise ConfigError(f"the servers of {self._file} are a list", hint="toolway edit")
        old, new = (jsonc.parse_jsonc(text, str(self._file)).value for text in (shown, after))
        changes = sort_changes(find_changes(old, new), root, entries)
        for name, entry in changes.added.items():
            check_server_name(name)
            admit(name, entry)
            document.set((*root, name), entry)
        for name in changes.removed:
            document.remove((*root, name))
        for name, settings in changes.settings.items():
            self._set_settings(document, (*root, name), settings)
        for path, value in changes.toolsets:
            document.set(path, value)
        if preview:
            return {"diff": self._preview(document.to_edit())}
        result = await self._apply(document.to_edit())
        held = [name for name in changes.added if name in self.held_servers()]
        return {"needs_review": bool(held), "hint": f"toolway trust {held[0]}" if held else "", **result}

    def _preview(self, edit: Edit) -> str:
        """Return the masked diff of an edit to the config file, without changing it.

        Raises `ConfigError` if the edit makes an entry invalid.
        """
        before = parse_config((edit.before or b"{}").decode(), str(self._file)).issues
        known = {(each.server, each.message) for each in before}
        for each in parse_config(edit.after.decode(), str(self._file)).issues:
            if each.severity == "error" and (each.server, each.message) not in known:
                raise ConfigError(
                    f"{each.server}: {each.message}", line=each.line, detail=each.detail, hint=each.hint, code=each.code
                )
        return _mask_secrets(edit.diff(), [edit.before or b"", edit.after])

    async def change_server(self, name: str, changes: Json, *, preview: bool = False) -> Json:
        """Change a server's settings in the config file and reload the gateway. None removes a setting.

        Only `EDITABLE_SETTINGS` can be changed, because none of them decides what is started or who gets a secret.
        With `preview`, only the diff is returned. Raises `ValueError`, `NotFound` or `ConfigError`; the file is then
        unchanged.
        """
        document, path = self._open_entry(name)
        self._set_settings(document, path, changes)
        if preview:
            return {"server": name, "diff": self._preview(document.to_edit())}
        return {"server": name, **await self._apply(document.to_edit())}

    @staticmethod
    def _set_settings(document: ConfigDocument, path: tuple[str | int, ...], changes: Json) -> None:
        """Change settings of the server entry at a key path, in memory. None removes a setting.

        Raises `ValueError` if one of them cannot be changed here.
        """
        _check_types(changes, EDITABLE_SETTINGS, f"use toolway edit {path[-1]}")
        if "deniedTools" in changes and not set(document.get((*path, "deniedTools")) or ()) <= set(
            changes["deniedTools"] or ()
        ):
            raise ValueError("deniedTools can only grow here: roll back, or use toolway edit")
        for key, value in changes.items():
            if value is not None:
                document.set((*path, key), value)
            elif document.get((*path, key)) is not None:
                document.remove((*path, key))
        if changes.get("enabled") is not None and document.get((*path, "disabled")) is not None:
            document.remove((*path, "disabled"))  # another spelling

    def _open_entry(self, name: str) -> tuple[ConfigDocument, tuple[str | int, ...]]:
        """Return the configuration file for editing, and the key path of a server's entry. Raises `NotFound`."""
        document = ConfigDocument(self._file)
        root, entries = find_server_map(jsonc.parse_jsonc(document.text, str(self._file)), str(self._file))
        written = next((each for each in entries if name in (each, normalize_name(each))), None)
        if written is None or not isinstance(document.get((*root, written)), dict):
            raise NotFound(
                f"{name} has no entry in {self._file}",
                server=name,
                hint="see where each server is set: toolway config --origin",
            )
        return document, (*root, written)

    async def _apply(self, edit: Edit) -> Json:
        """Write an edit to the config file and reload the gateway.

        If the gateway rejects the new content, the old content is restored and the `ConfigError` is raised again.
        """
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


def summarize_changes(before: bytes, after: bytes) -> list[str]:
    """Return a summary of how two versions of a config file differ, such as `added git`, `changed toolsets`.

    It never contains values. It is empty if either version cannot be parsed, or if only comments or spaces differ.
    """
    try:
        old, new = (_parts(data) for data in (before, after))
    except ConfigError:
        return []
    names = dict.fromkeys((*old, *new))
    words = {name: "added" if name not in old else "removed" if name not in new else "changed" for name in names}
    found = [f"{words[name]} {name[:80]}" for name in names if old.get(name) != new.get(name)]
    return found if len(found) <= MAX_SUMMARY_PARTS else [*found[:MAX_SUMMARY_PARTS], f"and {len(found)} in total"]


def _parts(data: bytes) -> Json:
    """Return a config file's parts by name: server entries, and settings of the `toolway` block."""
    parsed = jsonc.parse_jsonc(data.decode(errors="replace"))
    block = parsed.value.get(TOOLWAY_BLOCK) if isinstance(parsed.value, dict) else None
    settings = {f"{TOOLWAY_BLOCK}.{key}": value for key, value in block.items()} if isinstance(block, dict) else {}
    return {**find_server_map(parsed, "")[1], **settings}


def _check_types(changes: Json, known: Mapping[str, type | tuple[type, ...]], other: str) -> None:
    """Raise `ValueError` if a key of `changes` is not in `known`, or its value has the wrong type. None is allowed.

    `other` is added to the error to say how else to make the change.
    """
    if unknown := sorted(changes.keys() - known.keys()):
        raise ValueError(f"{unknown[0][:50]} cannot be changed here: {other}")
    for key, value in changes.items():
        if value is not None and not isinstance(value, known[key]):
            raise ValueError(f"{key} has the wrong type")
        if isinstance(value, list) and (
            len(value) > MAX_PATTERNS or not all(isinstance(each, str) and 0 < len(each) <= 200 for each in value)
        ):
            raise ValueError(f"{key} must be a list of at most {MAX_PATTERNS} names or patterns")


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
    """Mask the secrets of all servers in any of these file versions in `text`."""
    servers: list[Server] = []
    for data in versions:
        try:
            servers += parse_config(data.decode(errors="replace")).servers.values()
        except ConfigError:
            continue  # not parseable, so it defines no servers
    return build_masker(servers)(text)
