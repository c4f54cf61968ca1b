"""Entries in our own form → a change of a client's file. What the file has besides stays as it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from toolway.config.clients.catalog import client_named
from toolway.config.clients.importing import root_of, servers_at
from toolway.config.clients.inputs import with_inputs
from toolway.config.clients.masking import secrets_in
from toolway.config.clients.portable import at_home, localised
from toolway.config.clients.reading import read_value
from toolway.config.clients.values import Client, Export, Place
from toolway.config.clients.writing import write_value
from toolway.config.editing.change import same
from toolway.config.editing.documents import Document
from toolway.config.problems import Problem


def plan_export(place: Place, servers: Mapping[str, Mapping[str, Any]], remove: Iterable[str] = ()) -> Export:
    """What must change so that the file has these servers. Nothing is written: `editing.write.apply` does that.

    `servers` are entries as our own file has them, variables not filled in. An entry that says the same already is left
    untouched, spelling and all; of one that differs, only what differs. Only what `remove` names is removed. Raises
    `ConfigError` where the file cannot be read or changed.
    """
    client = client_named(place.client)
    document = Document(place.path, place.format)
    planning = _Planning(client, place, document)
    for name, value in servers.items():
        planning.put(name, value)
    for name in remove:
        planning.remove(name)
    secrets = secrets_in(document.value) | secrets_in(planning.before)
    return Export(document.edit(secrets), tuple(planning.losses), tuple(planning.written), tuple(planning.same))


class _Planning:
    def __init__(self, client: Client, place: Place, document: Document) -> None:
        self.losses: list[Problem] = []
        self.written: list[str] = []
        self.same: list[str] = []
        self.before = document.value
        self._client, self._place, self._document = client, place, document
        self._root = root_of(client, place, document)

    def put(self, name: str, value: Mapping[str, Any]) -> None:
        client, place = self._client, self._place
        new, losses = write_value(client.name, client.title, client.dialect, name, at_home(value, place))
        self.losses += losses
        if new is None:
            return
        found = self._find(name)
        if found is not None:
            self._keep_unsaid(found[1], new, value)
        if found is not None and self._means(name, found[1], new):
            self.same.append(name)
            return
        path = (*self._root, self._next_key(name) if found is None else found[0])
        if client.dialect.named and self._document.at(self._root) is None and not self._keyed():
            self._document.put(self._root, [new])
        else:
            self._document.put(path, new)
        self.written.append(name)
        with_inputs(client, self._document, new)

    def _keep_unsaid(self, written: Any, new: dict[str, Any], value: Mapping[str, Any]) -> None:
        """What the client cannot be told about a variable or a header does not take away what it knows itself."""
        for ours, theirs in (("env", self._client.dialect.env), ("headers", self._client.dialect.headers)):
            has = written.get(theirs) if theirs and isinstance(written, Mapping) else None
            wants = value.get(ours)
            if theirs and isinstance(has, Mapping) and isinstance(wants, Mapping):
                kept = {key: item for key, item in has.items() if key in wants and key not in new.get(theirs, {})}
                if kept:
                    new[theirs] = {**new.get(theirs, {}), **kept}

    def remove(self, name: str) -> None:
        found = self._find(name)
        if found is not None:
            self._document.drop((*self._root, found[0]))
            self.written.append(name)

    def _find(self, name: str) -> tuple[str | int, Any] | None:
        entries = servers_at(self._client, self._document.at(self._root))
        return next(((key, written) for key, each, written in entries if each == name), None)

    def _next_key(self, name: str) -> str | int:
        container = self._document.at(self._root)
        return len(container) if isinstance(container, list) else name

    def _keyed(self) -> bool:
        """Are the servers a map although their entries have a name of their own?"""
        return self._client.name == "goose"

    def _means(self, name: str, written: Any, new: Any) -> bool:
        """Does the entry in the file say the same as the new one, in whatever spelling?"""
        return isinstance(written, Mapping) and same(self._meant(name, written), self._meant(name, new))

    def _meant(self, name: str, written: Mapping[str, Any]) -> dict[str, Any]:
        value, _ = read_value(self._client.name, self._client.dialect, name, written)
        meant = localised(name, value, self._place)
        if not self._client.dialect.ours:
            _forget_spelling(meant)
        return meant


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
