"""Media types: which of them are written and read in the same way."""

from __future__ import annotations

from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["json", "form", "multipart", "xml", "text", "bytes"]

_ORDER: tuple[Kind, ...] = ("json", "form", "multipart", "xml", "text", "bytes")
_TEXTS = frozenset(
    {"application/x-ndjson", "application/jsonl", "application/graphql", "application/sdp", "application/javascript"}
    | {"application/yaml", "application/x-yaml", "application/sql", "application/toml"}
)


def bare(media: str) -> str:
    """Without parameters: `text/plain; charset=utf-8` → `text/plain`."""
    return media.partition(";")[0].strip().lower()


def kind(media: str) -> Kind:
    name = bare(media)
    if name in ("application/json", "text/json", "*/*", "application/*", "") or name.endswith("+json"):
        return "json"
    if name == "application/x-www-form-urlencoded":
        return "form"
    if name.startswith("multipart/"):
        return "multipart"
    if name in ("application/xml", "text/xml") or name.endswith("+xml"):
        return "xml"
    if name.startswith("text/") or name in _TEXTS or name.endswith("+yaml"):
        return "text"
    return "bytes"


def sent(media: str) -> str:
    """A media type that can be sent, where a document names a range of them."""
    ranges = {"json": "application/json", "text": "text/plain", "multipart": "multipart/form-data"}
    return ranges.get(kind(media), media) if "*" in bare(media) else media


def rank(media: str) -> int:
    """What a caller who does not choose is best served by comes first."""
    return _ORDER.index(kind(media))


def is_sendable(media: str) -> bool:
    """Whether it can stand in a header: a document may say anything."""
    return 0 < len(media) <= 200 and media.isascii() and media.isprintable() and "/" in media
