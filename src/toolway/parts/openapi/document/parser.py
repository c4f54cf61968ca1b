"""Parses an OpenAPI document's bytes, and resolves its `$ref` references.

Time and memory are bounded: a document over the size limits raises `InvalidDocument`.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote

import jiter

from toolway.parts.openapi.document.models import InvalidDocument
from toolway.types import Json

MAX_DOCUMENT_BYTES: Final = 32 * 1024 * 1024
MAX_JSON_VALUES: Final = 1_500_000

_MAX_REF_HOPS: Final = 20
_TRIM_HINT: Final = "keep only the operations you need, in a copy of the document"


def parse_document(data: bytes, source: str) -> tuple[Json, list[str]]:
    """Parse an OpenAPI document's bytes (JSON or YAML) into a mapping, and return it with warnings.

    Raises `InvalidDocument`, which names `source`, if the document is too large, unreadable, or not an object.
    """
    if len(data) > MAX_DOCUMENT_BYTES:
        raise InvalidDocument(f"{source} is larger than {MAX_DOCUMENT_BYTES >> 20} MiB", hint=_TRIM_HINT)
    try:
        tree, warnings = _parse_bytes(data)
    except InvalidDocument as exc:
        raise InvalidDocument(f"{source} is unreadable: {exc.reason}", hint=exc.hint) from None
    if not isinstance(tree, dict):
        raise InvalidDocument(
            f"{source} is not an OpenAPI document: it is not an object", hint="use the document's URL"
        )
    return tree, warnings


def _parse_bytes(data: bytes) -> tuple[Any, list[str]]:
    data = data.removeprefix(b"\xef\xbb\xbf")
    if data.lstrip()[:1] != b"{":
        return _load_yaml(data)
    try:
        return _parse_json(data)
    except ValueError as exc:
        try:
            return _load_yaml(data)  # YAML may begin with a brace too
        except InvalidDocument:
            raise InvalidDocument(f"invalid JSON: {exc}"[:300]) from None


def _parse_json(data: bytes) -> tuple[Any, list[str]]:
    # One of these precedes every value but the first, so a document with too many values is never built.
    if sum(data.count(mark) for mark in (b",", b"[", b"{")) > MAX_JSON_VALUES:
        raise InvalidDocument(f"more than {MAX_JSON_VALUES:,} values", hint=_TRIM_HINT)
    try:
        return jiter.from_json(data, allow_inf_nan=False, catch_duplicate_keys=True), []
    except ValueError as exc:
        if "duplicate key" not in str(exc).lower():
            raise
        return jiter.from_json(data, allow_inf_nan=False), [f"{exc}: the last one is used"[:200]]


def _load_yaml(data: bytes) -> tuple[Any, list[str]]:
    from toolway.parts.openapi.document import yaml_parser  # most documents are JSON, and PyYAML is slow to import

    try:
        return yaml_parser.parse_yaml(data.decode())
    except UnicodeDecodeError:
        raise InvalidDocument("it is not UTF-8", hint="save it as UTF-8") from None


# -- references --------------------------------------------------------------------------------------------------------


class UnresolvedRef(Exception):
    """Raised for a `$ref` or parameter in an OpenAPI document that cannot be used.

    The text explains the problem to the administrator.
    """


class RefResolver:
    """Resolves `$ref` within one OpenAPI document. Other documents are never opened."""

    def __init__(self, root: Json) -> None:
        self.root = root
        self._cache: dict[str, Any] = {}
        self.marked_fields: dict[tuple[str, int], tuple[Json, set[str]]] = {}  # cache of `_marked_fields`

    def lookup(self, reference: str) -> Any:
        """Return the value that `reference`, a `$ref`, points to.

        Raises `UnresolvedRef` if it is not in this document.
        """
        if reference not in self._cache:
            self._cache[reference] = self._walk(reference)
        return self._cache[reference]

    def follow(self, node: Any) -> Any:
        """Return `node`, or the value at the end of its chain of `$ref` references.

        Raises `UnresolvedRef` if a reference is not in this document or refers to itself.
        """
        for _ in range(_MAX_REF_HOPS):
            reference = node.get("$ref") if isinstance(node, dict) else None
            if not isinstance(reference, str):
                return node
            node = self.lookup(reference)
        raise UnresolvedRef(f"{_describe_node(node)} refers to itself")

    def resolve_object(self, node: Any) -> Json:
        """Return the object that `node` is or refers to by `$ref`.

        Raises `UnresolvedRef` if a reference cannot be resolved or the value is not an object.
        """
        found = self.follow(node)
        if not isinstance(found, dict):
            raise UnresolvedRef(f"{_describe_node(node)} is not an object")
        return found

    def _walk(self, reference: str) -> Any:
        if not reference.startswith("#"):
            raise UnresolvedRef(
                f"{reference[:120]} is in another document, which is never opened; bundle them into one"
                " (for example with `npx @redocly/cli bundle`)"
            )
        node: Any = self.root
        for part in (
            reference[1:].split("/")[1:] if reference.startswith("#/") else [reference[1:]] * (reference != "#")
        ):
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and name in node:
                node = node[name]
            elif isinstance(node, list) and name.isdecimal() and int(name[:9]) < len(node):
                node = node[int(name[:9])]
            else:
                raise UnresolvedRef(f"the document has no {reference[:120]}")
        return node


def _describe_node(node: Any) -> str:
    reference = node.get("$ref") if isinstance(node, dict) else None
    return str(reference)[:120] if reference else f"{node!r}"[:60]
