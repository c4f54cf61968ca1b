"""Bodies taken apart again, by their content type, and compared with what was to be sent."""

from __future__ import annotations

import base64
import email
import email.policy
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, unquote_plus

from tests.parts.openapi.decode_request import nested, read_json, same


def fits(kind: str, name: str) -> bool:
    name = name.partition(";")[0].strip().lower()
    return kind == name or name == "*/*" or (name.endswith("/*") and kind.startswith(name[:-1]))


def wrong_body(kind: str, header: str, data: bytes, body: Any) -> Iterator[str]:
    if kind == "application/json" or kind.endswith("+json"):
        if read_json(data.decode()) != body:
            yield f"the body is {data[:200]!r}, not {str(body)[:200]}"
    elif kind == "application/x-www-form-urlencoded":
        pairs = [tuple(pair.partition("=")[::2]) for pair in data.decode("ascii").split("&") if pair]
        yield from _wrong_form([(unquote_plus(name), unquote_plus(text)) for name, text in pairs], body)
    elif kind == "multipart/form-data":
        yield from _wrong_form(_parts(header, data), body)
    elif data != _raw(body) and (isinstance(body, str) or read_json(data.decode("utf-8", "replace")) != body):
        yield f"the body is {data[:100]!r}, not {str(body)[:100]}"


def _raw(value: Any) -> bytes:
    if isinstance(value, dict) and "base64" in value:
        return base64.b64decode(value["base64"])
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def _parts(header: str, data: bytes) -> list[tuple[str, str]]:
    head = f"Content-Type: {header}\r\n\r\n".encode()
    message = email.message_from_bytes(head + data, policy=email.policy.HTTP)
    found = []
    for part in message.iter_parts():
        name, payload = part.get_param("name", header="content-disposition"), part.get_payload(decode=True)
        assert isinstance(payload, bytes)
        found.append((unquote(str(name)), payload.decode("utf-8", "surrogateescape")))
    return found


def _wrong_form(pairs: list[tuple[str, str]], body: Any) -> Iterator[str]:
    if not isinstance(body, dict):
        yield "a form of something other than an object"
        return
    left = list(pairs)
    for name, value in body.items():
        own = [pair for pair in left if pair[0] in (name, f"{name}[]")]
        deep = [pair for pair in left if pair[0].startswith(f"{name}[") and pair not in own]
        inner = [pair for pair in left if isinstance(value, dict) and pair[0] in value] if not own and not deep else []
        left = [pair for pair in left if pair not in own + deep + inner]
        texts = [text for _, text in own]
        if not _form_value(texts, deep, inner, name, value):
            yield f"{name} in the form is {(own or deep or inner)!r}, not {value!r}"
    if left:
        yield f"the form has more than it should: {left!r}"


def _form_value(texts: list[str], deep: list[tuple[str, str]], inner: list[tuple[str, str]], name: str, v: Any) -> bool:
    if isinstance(v, dict) and set(v) <= {"base64", "filename", "contentType"} and "base64" in v:
        return [text.encode("utf-8", "surrogateescape") for text in texts] == [_raw(v)]
    if isinstance(v, list):
        if len(texts) == len(v) and all(
            _form_value([text], [], [], name, each) for text, each in zip(texts, v, strict=True)
        ):
            return True
        return (not v and not texts) or (len(texts) == 1 and same(texts[0], v))
    if isinstance(v, dict):
        if deep:
            return same(nested([(key, text) for key, text in deep], name), v)
        return same(dict(inner), v) if inner else (len(texts) == 1 and same(texts[0], v)) or (not v and not texts)
    return (v is None and not texts) or (len(texts) == 1 and same(texts[0], v))
