"""A value → the bytes of a body, by media type."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import msgspec

from toolway.openapi import media, places, styles
from toolway.openapi.operation import Content, Part
from toolway.openapi.problems import BadArguments

_PLAIN: Final = Part()
_HALF: Final = "a text with half a character (a lone surrogate)"
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,100}/[A-Za-z0-9!#$&^_.+-]{1,100}")
_NAME: Final = str.maketrans({'"': "%22", "\r": "%0D", "\n": "%0A", "\0": "%00"})  # as browsers write it


def write(value: Any, content: Content) -> tuple[bytes, str]:
    """The body and its Content-Type. Raises `BadArguments`."""
    kind = media.kind(content.media_type)
    if kind == "json":
        return _json(value), content.media_type
    if kind == "form":
        return _form(_fields(value), content.parts), content.media_type
    if kind == "multipart":
        return _multipart(_fields(value), content)
    if kind == "bytes":
        data, _, said = _file(value)
        return data, said or (content.media_type if "*" not in content.media_type else "application/octet-stream")
    text = styles.text_of(value)
    plain = kind == "text" and ";" not in content.media_type
    return _bytes(text), f"{content.media_type}; charset=utf-8" if plain else content.media_type


def _fields(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadArguments("the body is a form, so it must be an object")
    return value


def _form(fields: Mapping[str, Any], parts: Mapping[str, Part]) -> bytes:
    found: styles.Pairs = []
    for name, value in fields.items():
        part = parts.get(name, _PLAIN)
        quoted = partial(places.in_query, reserved=part.allow_reserved)
        if value is None:
            continue
        if part.style:
            found.extend(styles.pairs(name, value, part.style, part.explode, places.in_query, quoted))
            continue
        for each in value if isinstance(value, list) else [value]:
            data = _file(each)[0] if part.is_file else styles.text_of(each)
            found.append((places.in_query(name), places.in_query(data, reserved=part.allow_reserved)))
    return "&".join(f"{name}={text}" for name, text in found).encode()


def _multipart(fields: Mapping[str, Any], content: Content) -> tuple[bytes, str]:
    pieces: list[bytes] = []
    for name, value in fields.items():
        part = content.parts.get(name, _PLAIN)
        pieces.extend(_piece(name, each, part) for each in _items(value, part))
    mark = _boundary(pieces)
    line = b"--" + mark.encode()
    body = b"".join(line + b"\r\n" + piece + b"\r\n" for piece in pieces) + line + b"--\r\n"
    return body, f"{media.bare(content.media_type)}; boundary={mark}"


def _items(value: Any, part: Part) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, list) and part.style in styles.SEPARATORS and not part.explode:
        return [styles.SEPARATORS[part.style].join(styles.text_of(each) for each in value)]
    as_one = part.content_type and media.kind(part.content_type) == "json"  # the list itself is the part
    return value if isinstance(value, list) and not as_one else [value]


def _piece(name: str, value: Any, part: Part) -> bytes:
    head = f'Content-Disposition: form-data; name="{name.translate(_NAME)}"'
    is_file = part.is_file and (not isinstance(value, dict) or "base64" in value)  # or an object in its place
    said = part.content_type if is_file == part.is_file else ""
    if is_file:
        data, filename, own = _file(value)
        head += f'; filename="{(filename or name).translate(_NAME)}"'
        said = own or said
    else:
        as_json = isinstance(value, dict | list) or (said and media.kind(said) == "json")
        data = _json(value) if as_json else _bytes(styles.text_of(value))
        said = said or ("application/json" if as_json else "")
    if said:
        head += f"\r\nContent-Type: {said}"
    return _bytes(head) + b"\r\n\r\n" + data


def _boundary(pieces: list[bytes]) -> str:
    """A mark that stands in none of the pieces, and is the same for the same pieces."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    mark = f"toolway-{digest.hexdigest()[:40]}"
    while any(mark.encode() in piece for piece in pieces):
        mark = f"toolway-{hashlib.sha256(mark.encode()).hexdigest()[:40]}"
    return mark


def _file(value: Any) -> tuple[bytes, str, str]:
    """Bytes, name and media type of a file: a text, or base64 with what belongs to it."""
    if not isinstance(value, dict):
        return _bytes(styles.text_of(value)), "", ""
    data = value.get("base64")
    if not isinstance(data, str):
        raise BadArguments('a file is a text, or {"base64": …, "filename": …, "contentType": …}')
    name, said = value.get("filename"), value.get("contentType")
    if said is not None and not (isinstance(said, str) and _TOKEN.fullmatch(said)):
        raise BadArguments("the contentType of a file is a media type like image/png")
    try:
        return base64.b64decode(data, validate=True), name if isinstance(name, str) else "", said or ""
    except (binascii.Error, ValueError):
        raise BadArguments("the base64 of a file cannot be decoded") from None


def _json(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        raise BadArguments(_HALF) from None


def _bytes(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadArguments(_HALF) from None
