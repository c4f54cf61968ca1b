"""Exports server entries to an MCP client's configuration file, as a planned edit.

All other content of the file stays unchanged. A YAML file is not edited: instead, the plan has lines to paste.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from typing import Any

from toolway.config.clients.entry_writer import denormalize_entry
from toolway.config.clients.importer import find_root, iter_entries, normalize_entry
from toolway.config.clients.models import Client, ClientConfigFile, ExportPlan, RootPath, Snippet
from toolway.config.clients.portable import drop_default_cwd, restore_spelling, to_explicit
from toolway.config.clients.registry import get_client
from toolway.config.editing.document import ConfigDocument
from toolway.config.editing.patch import cannot_edit_error, is_same_value
from toolway.config.masking import find_secrets_in_args, mask_value
from toolway.config.schema import ConfigIssue
from toolway.config.variables import VSCODE_SYNTAX, find_refs
from toolway.secrets.detection import secrets_in_url
from toolway.secrets.replacer import MIN_SECRET_CHARS


def plan_export(
    file: ClientConfigFile, servers: Mapping[str, Mapping[str, Any]], remove: Iterable[str] = ()
) -> ExportPlan:
    """Plan the edit that sets these servers in a client file.

    Nothing is written: `apply_edit` does that.

    `servers` are entries of Toolway's file, variables not expanded. An equivalent entry stays unchanged, including its
    spelling; otherwise only the differences change. Only servers named in `remove` are removed. Raises `ConfigError` if
    the file cannot be read or edited.
    """
    document = ConfigDocument(file.path, file.format)
    planner = _ExportPlanner(get_client(file.client), file, document)
    for name, value in servers.items():
        planner.set_server(name, value)
    for name in remove:
        planner.remove_server(name)
    in_file = _find_plain_secrets(document.value)
    snippet = None
    if file.format == "yaml":
        snippet = planner.make_snippet(in_file) if planner.changed else None
    else:
        planner.write_to(document)
    edit = document.to_edit(in_file | _find_plain_secrets(document.value))
    return ExportPlan(edit, tuple(planner.unsupported), tuple(planner.changed), tuple(planner.unchanged), snippet)


class _ExportPlanner:
    """Plans the changes to the servers in a client's file. `write_to` applies all changes at once."""

    def __init__(self, client: Client, file: ClientConfigFile, document: ConfigDocument) -> None:
        self.unsupported: list[ConfigIssue] = []
        self.changed: list[str] = []
        self.unchanged: list[str] = []
        self._client, self._file = client, file
        self._root = find_root(client, file, document)
        found = document.get(self._root)
        if found is not None and not isinstance(found, dict | list if client.dialect.name_key else dict):
            raise cannot_edit_error(self._root, str(file.path))
        self._servers: Any = ([] if client.dialect.is_list else {}) if found is None else copy(found)

    def set_server(self, name: str, value: Mapping[str, Any]) -> None:
        client, file = self._client, self._file
        found = self._find_server(name)
        if found is not None and isinstance(found[1], Mapping):
            existing, _ = normalize_entry(client.name, client.dialect, name, found[1])
            value = _keep_extras(restore_spelling(name, value, existing, file), existing, client.name)
        new, unsupported = denormalize_entry(
            client.name, client.title, client.dialect, name, drop_default_cwd(value, file)
        )
        self.unsupported += unsupported
        if new is None:
            return
        if found is None:
            self._append_server(name, new)
        else:
            self._keep_inexpressible(found[1], new, value)
            if self._is_equivalent(name, found[1], new):
                self.unchanged.append(name)
                return
            self._servers[found[0]] = new
        self.changed.append(name)

    def remove_server(self, name: str) -> None:
        found = self._find_server(name)
        if found is not None:
            del self._servers[found[0]]
            self.changed.append(name)

    def write_to(self, document: ConfigDocument) -> None:
        if self.changed:
            document.set(self._root, self._servers)
            _add_missing_inputs(self._client, document, self._root)

    def make_snippet(self, secrets: frozenset[str]) -> Snippet:
        """Return the new and changed entries under the servers' root key, and the names of the removed ones."""
        found = {name: self._find_server(name) for name in self.changed}
        entries: Any = {name: each[1] for name, each in found.items() if each is not None}
        removed = tuple(name for name, each in found.items() if each is None)
        value = list(entries.values()) if isinstance(self._servers, list) else entries
        for key in reversed(self._root) if entries else ():
            value = {key: value}
        return Snippet(value, removed, secrets)

    def _append_server(self, name: str, new: dict[str, Any]) -> None:
        if isinstance(self._servers, list):
            self._servers.append(new)
        else:
            self._servers[name] = new

    def _keep_inexpressible(self, raw: Any, new: dict[str, Any], value: Mapping[str, Any]) -> None:
        """Keep existing `env` and `headers` values if the client cannot express the new ones."""
        for ours, theirs in (("env", self._client.dialect.env), ("headers", self._client.dialect.headers)):
            existing = raw.get(theirs) if theirs and isinstance(raw, Mapping) else None
            desired = value.get(ours)
            if theirs and isinstance(existing, Mapping) and isinstance(desired, Mapping):
                kept = {
                    key: item for key, item in existing.items() if key in desired and key not in new.get(theirs, {})
                }
                if kept:
                    new[theirs] = {**new.get(theirs, {}), **kept}

    def _find_server(self, name: str) -> tuple[str | int, Any] | None:
        entries = iter_entries(self._client, self._servers)
        return next(((key, raw) for key, each, raw in entries if each == name), None)

    def _is_equivalent(self, name: str, raw: Any, new: Any) -> bool:
        """Return True if the existing server entry and the new one mean the same."""
        return isinstance(raw, Mapping) and is_same_value(self._meaning(name, raw), self._meaning(name, new))

    def _meaning(self, name: str, raw: Mapping[str, Any]) -> dict[str, Any]:
        value, _ = normalize_entry(self._client.name, self._client.dialect, name, raw)
        meaning = to_explicit(name, value, self._file)
        if not self._client.dialect.is_own:
            _drop_spelling(meaning)
        return meaning


def _keep_extras(value: dict[str, Any], existing: Mapping[str, Any], client: str) -> dict[str, Any]:
    """Return the new entry `value`, adding the existing entry's client-specific keys if it has none."""
    theirs, ours = existing.get("extras", {}), value.get("extras", {})
    return value if client in ours or client not in theirs else {**value, "extras": {**ours, client: theirs[client]}}


def _drop_spelling(entry: dict[str, Any]) -> None:
    """Remove the parts of an entry that do not change its meaning: a type in `extras`, empty lists, `enabled: true`."""
    extras = {client: dict(left) for client, left in entry.pop("extras", {}).items()}
    for left in extras.values():
        for key in ("type", "transport"):
            left.pop(key, None)
    entry["extras"] = {client: left for client, left in extras.items() if left}
    for key in ("args", "env", "headers", "extras"):
        if not entry.get(key):
            entry.pop(key, None)
    if entry.get("enabled") is True:
        del entry["enabled"]


# -- inputs of VS Code ------------------------------------------------------------------------------------------------


def _add_missing_inputs(client: Client, document: ConfigDocument, root: RootPath) -> None:
    """Add a description to `inputs` for each input that a file's servers use without one.

    VS Code prompts for `${input:id}`, and needs a description in `inputs`. Other clients do not have inputs.
    """
    if "input" not in client.dialect.syntax.forms:
        return
    given = document.get(("inputs",))
    known = {each.get("id") for each in given if isinstance(each, Mapping)} if isinstance(given, list) else set()
    for name in dict.fromkeys(_iter_input_names(document.get(root))):
        if name not in known:
            new = {"type": "promptString", "id": name, "description": name, "password": True}
            at = len(given) if isinstance(given, list) else 0
            if at:
                document.set(("inputs", at), new)
            else:
                document.set(("inputs",), [new])
            given = document.get(("inputs",))


def _iter_input_names(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from (ref.name for ref in find_refs(value, VSCODE_SYNTAX) if ref.kind == "input")
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _iter_input_names(item)
    elif isinstance(value, list):
        for item in value:
            yield from _iter_input_names(item)


# -- secrets to mask --------------------------------------------------------------------------------------------------


def _find_plain_secrets(document: Any) -> frozenset[str]:
    """Find the plain-text secrets in a client's file, to mask them in the diff.

    A string that is part of a command is never masked, even if `env` repeats it, because the diff must show what an
    entry runs.
    """
    found = {secret for secret in _iter_plain_secrets(document, ()) if len(secret) >= MIN_SECRET_CHARS}
    shown = list(_iter_command_texts(document))
    return frozenset(secret for secret in found if not any(secret in text for text in shown))


def _iter_command_texts(value: Any) -> Iterator[str]:
    """Yield the commands and arguments of all entries, without arguments that contain a secret."""
    if not isinstance(value, Mapping):
        return
    for key, item in value.items():
        if key in ("command", "args"):
            words = [each for each in (item if isinstance(item, list) else [item]) if isinstance(each, str)]
            secrets = set(find_secrets_in_args(words))
            yield from (word for word in words if not any(secret in word for secret in secrets))
        else:
            yield from _iter_command_texts(item)


def _iter_plain_secrets(value: Any, path: tuple[str, ...]) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _iter_plain_secrets(item, (*path, str(key)))
    elif isinstance(value, list):
        yield from find_secrets_in_args([each for each in value if isinstance(each, str)])
        for item in value:
            if not isinstance(item, str):
                yield from _iter_plain_secrets(item, path)
    elif isinstance(value, str):
        masked_value = mask_value(value, *path)
        if masked_value != value:
            within = list(secrets_in_url(value))
            yield from within or [value.rpartition(" ")[2], value]
