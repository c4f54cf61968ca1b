"""Entries in our own form → a change of a client's file. What the file has besides stays as it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any

from toolway.config.clients.catalog import client_named
from toolway.config.clients.importing import root_of, servers_at
from toolway.config.clients.inputs import with_inputs
from toolway.config.clients.masking import secrets_in
from toolway.config.clients.portable import at_home, localised, restored
from toolway.config.clients.reading import read_value
from toolway.config.clients.values import Client, Export, Place
from toolway.config.clients.writing import write_value
from toolway.config.editing.change import same, unchangeable
from toolway.config.editing.documents import Document
from toolway.config.problems import Problem


def plan_export(place: Place, servers: Mapping[str, Mapping[str, Any]], remove: Iterable[str] = ()) -> Export:
    """What must change so that the file has these servers. Nothing is written: `editing.write.apply` does that.

    `servers` are entries as our own file has them, variables not filled in. An entry that says the same already is left
    untouched, spelling and all; of one that differs, only what differs. Only what `remove` names is removed. Raises
    `ConfigError` where the file cannot be read or changed.
    """
    document = Document(place.path, place.format)
    planning = _Planning(client_named(place.client), place, document)
    for name, value in servers.items():
        planning.put(name, value)
    for name in remove:
        planning.remove(name)
    before = secrets_in(document.value)
    planning.finish(document)
    edit = document.edit(before | secrets_in(document.value))
    return Export(edit, tuple(planning.losses), tuple(planning.written), tuple(planning.same))


class _Planning:
    """The servers of a file as they shall be. They are changed all at once."""

    def __init__(self, client: Client, place: Place, document: Document) -> None:
        self.losses: list[Problem] = []
        self.written: list[str] = []
        self.same: list[str] = []
        self._client, self._place = client, place
        self._root = root_of(client, place, document)
        found = document.at(self._root)
        if found is not None and not isinstance(found, dict | list if client.dialect.named else dict):
            raise unchangeable(self._root, str(place.path))
        self._servers: Any = ([] if client.dialect.listed else {}) if found is None else copy(found)

    def put(self, name: str, value: Mapping[str, Any]) -> None:
        client, place = self._client, self._place
        found = self._find(name)
        if found is not None and isinstance(found[1], Mapping):
            there, _ = read_value(client.name, client.dialect, name, found[1])
            value = _with_extras(restored(name, value, there, place), there, client.name)
        new, losses = write_value(client.name, client.title, client.dialect, name, at_home(value, place))
        self.losses += losses
        if new is None:
            return
        if found is None:
            self._append(name, new)
        else:
            self._keep_unsaid(found[1], new, value)
            if self._means(name, found[1], new):
                self.same.append(name)
                return
            self._servers[found[0]] = new
        self.written.append(name)

    def remove(self, name: str) -> None:
        found = self._find(name)
        if found is not None:
            del self._servers[found[0]]
            self.written.append(name)

    def finish(self, document: Document) -> None:
        if self.written:
            document.put(self._root, self._servers)
            with_inputs(self._client, document, self._root)

    def _append(self, name: str, new: dict[str, Any]) -> None:
        if isinstance(self._servers, list):
            self._servers.append(new)
        else:
            self._servers[name] = new

    def _keep_unsaid(self, written: Any, new: dict[str, Any], value: Mapping[str, Any]) -> None:
        """What the client cannot be told about a variable or a header does not take away what it knows itself."""
        for ours, theirs in (("env", self._client.dialect.env), ("headers", self._client.dialect.headers)):
            has = written.get(theirs) if theirs and isinstance(written, Mapping) else None
            wants = value.get(ours)
            if theirs and isinstance(has, Mapping) and isinstance(wants, Mapping):
                kept = {key: item for key, item in has.items() if key in wants and key not in new.get(theirs, {})}
                if kept:
                    new[theirs] = {**new.get(theirs, {}), **kept}

    def _find(self, name: str) -> tuple[str | int, Any] | None:
        entries = servers_at(self._client, self._servers)
        return next(((key, written) for key, each, written in entries if each == name), None)

    def _means(self, name: str, written: Any, new: Any) -> bool:
        """Does the entry in the file say the same as the new one, in whatever spelling?"""
        return isinstance(written, Mapping) and same(self._meant(name, written), self._meant(name, new))

    def _meant(self, name: str, written: Mapping[str, Any]) -> dict[str, Any]:
        value, _ = read_value(self._client.name, self._client.dialect, name, written)
        meant = localised(name, value, self._place)
        if not self._client.dialect.ours:
            _forget_spelling(meant)
        return meant


def _with_extras(value: dict[str, Any], there: Mapping[str, Any], client: str) -> dict[str, Any]:
    """What only the client understands is its own: an entry that says nothing of it takes nothing away."""
    theirs, ours = there.get("extras", {}), value.get("extras", {})
    return value if client in ours or client not in theirs else {**value, "extras": {**ours, client: theirs[client]}}


def _forget_spelling(meant: dict[str, Any]) -> None:
    """What says nothing: a type that the rest tells as well, empty lists, a switch that is on."""
    extras = {client: dict(left) for client, left in meant.pop("extras", {}).items()}
    for left in extras.values():
        for key in ("type", "transport"):
            left.pop(key, None)
    meant["extras"] = {client: left for client, left in extras.items() if left}
    for key in ("args", "env", "headers", "extras"):
        if not meant.get(key):
            meant.pop(key, None)
    if meant.get("enabled") is True:
        del meant["enabled"]
