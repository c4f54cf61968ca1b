"""VS Code asks a person for `${input:id}`, and wants to know how: each id needs its place in `inputs`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from toolway.config.clients.values import Client, KeyPath
from toolway.config.editing.documents import Document
from toolway.config.syntaxes import EDITOR, refs


def with_inputs(client: Client, document: Document, root: KeyPath) -> None:
    """Add the inputs that the servers of a file use and the file does not describe."""
    if "input" not in client.dialect.syntax.forms:
        return
    given = document.at(("inputs",))
    known = {each.get("id") for each in given if isinstance(each, Mapping)} if isinstance(given, list) else set()
    for name in dict.fromkeys(_asked(document.at(root))):
        if name not in known:
            new = {"type": "promptString", "id": name, "description": name, "password": True}
            at = len(given) if isinstance(given, list) else 0
            if at:
                document.put(("inputs", at), new)
            else:
                document.put(("inputs",), [new])
            given = document.at(("inputs",))


def _asked(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from (ref.name for ref in refs(value, EDITOR) if ref.kind == "input")
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _asked(item)
    elif isinstance(value, list):
        for item in value:
            yield from _asked(item)
