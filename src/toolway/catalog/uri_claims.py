"""Servers' claims on resource URIs, which decide where a read is sent.

A server claims each URI that it lists, and every URI that begins with the literal text of one of its templates. A URI
that does not name a server is sent to a server only if no other server claims it. Claims have no order, so a server
cannot take over another one's URI with its name, its speed, or a later list.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from toolway.catalog.catalog import Item

#: Scheme of qualified URIs, which name their server: `toolway:github/file:///readme`.
QUALIFIED_PREFIX: Final = "toolway:"


class UriClaims:
    """Index of the resource URIs and templates of several servers. Finds the servers that claim a URI."""

    def __init__(self, resources: Iterable[Item], templates: Iterable[Item]) -> None:
        uris = {(item.name, item.server) for item in resources if _is_claimable(item.name)}
        prefixes = {(prefix, item.server) for item in templates if _is_claimable(prefix := literal_prefix(item.name))}
        self._uris = _servers_by_text(uris)
        self._prefixes = _servers_by_text(prefixes)
        self._prefix_lengths = sorted({len(prefix) for prefix in self._prefixes})
        self._sorted = sorted(uris | prefixes)
        self._next_other = _indices_of_next_server(self._sorted)

    def servers_for(self, uri: str) -> set[str]:
        """Return the servers that list this URI or have a template for it."""
        found = set(self._uris.get(uri, ()))
        for length in self._prefix_lengths:
            if length > len(uri):
                break
            found |= self._prefixes.get(uri[:length], set())
        return found

    def is_exclusive(self, resource: Item) -> bool:
        """Return True if only the server of this resource claims its URI."""
        return _is_claimable(resource.name) and self.servers_for(resource.name) == {resource.server}

    def is_exclusive_template(self, template: Item) -> bool:
        """Return True if no other server claims a URI that this template may produce."""
        prefix = literal_prefix(template.name)
        if not _is_claimable(prefix) or self.servers_for(prefix) != {template.server}:
            return False
        first = bisect_left(self._sorted, (prefix, ""))  # all claims that begin with `prefix` follow
        other = self._next_other[first] if self._sorted[first][1] == template.server else first
        return other == len(self._sorted) or not self._sorted[other][0].startswith(prefix)


def find_claiming_servers(resources: Iterable[Item], templates: Iterable[Item], uri: str) -> set[str]:
    """Return the servers that list a URI or have a template for it. Without an index, for a single lookup."""
    found = {item.server for item in resources if item.name == uri}
    prefixes = ((literal_prefix(item.name), item.server) for item in templates)
    return found | {server for prefix, server in prefixes if _is_claimable(prefix) and uri.startswith(prefix)}


def literal_prefix(template: str) -> str:
    """Return the part of a URI template before its first variable, which all its URIs share."""
    return template.partition("{")[0]


def qualify(server: str, uri: str) -> str:
    """Return the URI with the server's name in it: `toolway:github/file:///readme`."""
    return f"{QUALIFIED_PREFIX}{server}/{uri}"


def _is_claimable(text: str) -> bool:
    """Return True if a server may claim URIs with this prefix.

    The prefix must have a scheme, or it would claim all URIs, and must not be the prefix of a qualified URI.
    """
    return ":" in text and not text.lower().startswith(QUALIFIED_PREFIX)


def _servers_by_text(claims: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for text, server in claims:
        found.setdefault(text, set()).add(server)
    return found


def _indices_of_next_server(claims: list[tuple[str, str]]) -> list[int]:
    """Return, for each claim in a sorted list, the index of the next claim by another server.

    If no such claim exists, the index is the length of the list.
    """
    found = [len(claims)] * len(claims)
    for index in range(len(claims) - 2, -1, -1):
        same = claims[index][1] == claims[index + 1][1]
        found[index] = found[index + 1] if same else index + 1
    return found
