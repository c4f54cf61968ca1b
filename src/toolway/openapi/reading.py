"""Bytes → the tree of a document, in bounded time and memory."""

from __future__ import annotations

from typing import Any, Final

import jiter

from toolway.model import Json
from toolway.openapi.problems import BadDocument

MAX_BYTES: Final = 32 * 1024 * 1024
MAX_VALUES: Final = 1_500_000
_CUT = "keep only the operations you need, in a copy of the document"


def read(data: bytes, where: str) -> tuple[Json, list[str]]:
    """The document as a mapping, and what is odd about it. Raises `BadDocument`, which names `where`."""
    if len(data) > MAX_BYTES:
        raise BadDocument(f"{where} is larger than {MAX_BYTES >> 20} MiB", fix=_CUT)
    try:
        tree, odd = _parse(data)
    except BadDocument as exc:
        raise BadDocument(f"{where} cannot be read: {exc.reason}", fix=exc.fix) from None
    if not isinstance(tree, dict):
        raise BadDocument(f"{where} is no OpenAPI document: it has no fields", fix="name the address of the document")
    return tree, odd


def _parse(data: bytes) -> tuple[Any, list[str]]:
    data = data.removeprefix(b"\xef\xbb\xbf")
    if data.lstrip()[:1] != b"{":
        return _yaml(data)
    try:
        return _json(data)
    except ValueError as exc:
        try:
            return _yaml(data)  # which has braces too
        except BadDocument:
            raise BadDocument(f"no valid JSON: {exc}"[:300]) from None


def _json(data: bytes) -> tuple[Any, list[str]]:
    # Every value but the first stands behind one of these, so a document that is all values is never built.
    if sum(data.count(mark) for mark in (b",", b"[", b"{")) > MAX_VALUES:
        raise BadDocument(f"more than {MAX_VALUES:,} values", fix=_CUT)
    try:
        return jiter.from_json(data, allow_inf_nan=False, catch_duplicate_keys=True), []
    except ValueError as exc:
        if "duplicate key" not in str(exc).lower():
            raise
        return jiter.from_json(data, allow_inf_nan=False), [f"{exc}: the last one counts"[:200]]


def _yaml(data: bytes) -> tuple[Any, list[str]]:
    from toolway.openapi import yaml_tree  # most documents are JSON, and PyYAML is not small

    try:
        return yaml_tree.parse(data.decode())
    except UnicodeDecodeError:
        raise BadDocument("it is not UTF-8", fix="save it as UTF-8") from None
