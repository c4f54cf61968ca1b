"""What a document prescribes for a request, read from the document by itself: nothing here is of the reader that is
tested. A request that arrived is taken apart again, by style and content type, and compared with what was to be sent.

    wanted = prescriptions(tree)["GET", "/pets/{id}"]
    problems = wanted.check(request, {("path", "id"): "a/b"}, body=None, base="/v1")
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import unquote

from tests.parts.openapi.decode_request import Slot, belongs, in_header, in_path, in_query, percent, same
from tests.parts.openapi.unpack import fits, wrong_body

Json = dict[str, Any]
Given = Mapping[tuple[str, str], Any]  # by place and name
METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace", "query")
#: What every request has, whatever the document says.
USUAL = frozenset({"host", "accept", "user-agent", "accept-encoding", "content-length", "content-type", "cookie"})
_FORMATS = {"csv": "simple", "ssv": "spaceDelimited", "tsv": "tabDelimited", "pipes": "pipeDelimited"}


class Arrived(NamedTuple):
    method: str
    target: str  # as it stands in the request line
    headers: list[tuple[str, str]]  # names in lower case
    body: bytes

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key == name.lower()), "")


@dataclass(frozen=True)
class Prescribed:
    method: str
    path: str
    slots: list[Slot]
    media: dict[str, Json] = field(default_factory=dict)  # of bodies

    def check(self, arrived: Arrived, given: Given, body: Any, base: str, extra: Given = {}) -> list[str]:  # noqa: B006
        """What is not as it should be. `extra` are credentials and the like, as text, by place and name."""
        return [*self._wrong(arrived, given, body, base, extra)]

    def _wrong(self, arrived: Arrived, given: Given, body: Any, base: str, extra: Given) -> Iterator[str]:
        if arrived.method != self.method:
            yield f"the method is {arrived.method}"
        path, _, query = arrived.target.partition("?")
        fixed = self.path.partition("#")[0].partition("?")[2]  # some documents tell operations apart by it
        if fixed:
            if not f"{query}&".startswith(f"{fixed}&"):
                yield f"the query does not begin with {fixed}"
            query = query[len(fixed) + 1 :]
        if not path.startswith(base + "/") and base + self.path != unquote(path):
            yield f"the target does not begin with {base}: {arrived.target[:200]}"
        known = {(slot.place, slot.name) for slot in self.slots}
        yield from (f"no such parameter: {key}" for key in given if key not in known)
        yield from self._path(path.removeprefix(base), given)
        yield from self._query(query, given, extra)
        yield from self._headers(arrived, given, extra)
        yield from self._cookies(arrived.header("cookie"), given, extra)
        yield from self._body(arrived, body)

    def _of(self, place: str) -> list[Slot]:
        return [slot for slot in self.slots if slot.place == place]

    # -- path

    def _path(self, path: str, given: Given) -> Iterator[str]:
        slots = {slot.name: slot for slot in self._of("path")}
        parts = re.split(r"\{([^{}/]+)\}", self.path.partition("#")[0].partition("?")[0])
        pattern = "".join(
            f"(?:{re.escape(part)}|{re.escape(percent(part))})" if number % 2 == 0 else "([^/?#]*)"
            for number, part in enumerate(parts)
        )
        found = re.fullmatch(pattern, path)
        if found is None:
            yield f"the path is {path[:200]}, not of the form {self.path}"
            return
        for name, text in zip(parts[1::2], found.groups(), strict=True):
            slot = slots.get(name, Slot(name, "path", "simple", False))
            if ("path", name) not in given:
                yield f"the path has no value for {name}"
                continue
            value = given["path", name]
            if not same(in_path(slot, text, value), value):
                yield f"{name} in the path is {text[:100]!r}, not {value!r}"

    # -- query

    def _query(self, query: str, given: Given, extra: Given) -> Iterator[str]:
        pairs = _pairs(query, "&")
        left = list(pairs)
        for slot in self._of("query"):
            if ("query", slot.name) not in given:
                if slot.required and ("query", slot.name) not in extra:
                    yield f"the query has no {slot.name}"
                continue
            value = given["query", slot.name]
            own = [pair for pair in left if belongs(slot, unquote(pair[0]), value)]
            left = [pair for pair in left if pair not in own]
            if not same(in_query(slot, own, value), value):
                yield f"{slot.name} in the query is {own!r}, not {value!r}"
        for name, text in ((name, text) for (place, name), text in extra.items() if place == "query"):
            mine = [pair for pair in left if unquote(pair[0]) == name and unquote(pair[1]) == text]
            left = [pair for pair in left if pair not in mine]
            if len(mine) != 1:
                yield f"the query has not once {name}"
        if left:
            yield f"the query has more than it should: {left!r}"

    # -- headers and cookies

    def _headers(self, arrived: Arrived, given: Given, extra: Given) -> Iterator[str]:
        found = [(name, text) for name, text in arrived.headers if name not in USUAL]
        for slot in self._of("header"):
            key = ("header", slot.name)
            if key not in given:
                continue
            value = given[key]
            own = [text for name, text in found if name == slot.name.lower()]
            found = [pair for pair in found if pair[0] != slot.name.lower()]
            if len(own) != 1 or not same(in_header(slot, own[0], value), value):
                yield f"the header {slot.name} is {own!r}, not {value!r}"
        for name, text in ((name, text) for (place, name), text in extra.items() if place == "header"):
            if (name.lower(), text) not in found:
                yield f"the header {name} is missing"
            found = [pair for pair in found if pair[0] != name.lower()]
        if found:
            yield f"unexpected headers: {[name for name, _ in found]}"
        names = [name for name, _ in arrived.headers]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            yield f"headers that are there twice: {twice}"

    def _cookies(self, header: str, given: Given, extra: Given) -> Iterator[str]:
        pairs = _pairs(header, "; ")
        for slot in self._of("cookie"):
            if ("cookie", slot.name) in given:
                value = given["cookie", slot.name]
                own = [pair for pair in pairs if belongs(slot, unquote(pair[0]), value)]
                pairs = [pair for pair in pairs if pair not in own]
                if not same(in_query(slot, own, value), value):
                    yield f"the cookie {slot.name} is {own!r}, not {value!r}"
        expected = [name for place, name in extra if place == "cookie"]
        if sorted(name for name, _ in pairs) != sorted(expected):
            yield f"the cookies are {header[:200]!r}"

    # -- body

    def _body(self, arrived: Arrived, body: Any) -> Iterator[str]:
        kind = arrived.header("content-type").partition(";")[0].strip().lower()
        if body is None:
            if arrived.body or kind:
                yield f"there is a body of type {kind!r} that nobody wanted"
            return
        own = isinstance(body, dict) and body.get("contentType") == kind and "application/octet-stream" in self.media
        if not own and not any(fits(kind, name) for name in self.media):
            yield f"the body is {kind}, and the document knows {list(self.media)}"
        yield from wrong_body(kind, arrived.header("content-type"), arrived.body, body)


def _pairs(text: str, separator: str) -> list[tuple[str, str]]:
    parts = [pair.partition("=") for pair in text.split(separator)] if text else []
    return [(name, value) for name, _, value in parts]


def prescriptions(tree: Json) -> dict[tuple[str, str], Prescribed]:
    swagger = str(tree.get("swagger", "")).startswith("2")
    found = {}
    for path, item in tree.get("paths", {}).items():
        item = _follow(tree, item)
        if not isinstance(item, dict):
            continue
        for method in METHODS:
            operation = item.get(method)
            if isinstance(operation, dict):
                found[method.upper(), path] = _operation(tree, swagger, method, path, item, operation)
    return found


def _operation(tree: Json, swagger: bool, method: str, path: str, item: Json, operation: Json) -> Prescribed:
    raws: dict[tuple[str, str], Json] = {}
    for each in [*(item.get("parameters") or ()), *(operation.get("parameters") or ())]:
        raw = _follow(tree, each)
        raws[raw["in"], raw["name"]] = raw
    slots = [_slot(raw, swagger) for raw in raws.values() if raw["in"] in ("path", "query", "header", "cookie")]
    if swagger:
        media = _swagger_media(tree, operation, list(raws.values()))
    else:
        body = _follow(tree, operation.get("requestBody") or {})
        media = dict(body.get("content", {}))
    return Prescribed(method.upper(), path, slots, media)


def _slot(raw: Json, swagger: bool) -> Slot:
    place, required = raw["in"], raw.get("required") is True
    usual = "simple" if place in ("path", "header") else "form"
    if swagger:
        chosen = raw.get("collectionFormat", "csv")
        style = usual if chosen in ("csv", "multi") else _FORMATS.get(chosen, usual)
        return Slot(raw["name"], place, style, chosen == "multi", required=required)
    style = raw.get("style", usual)
    is_json = any("json" in kind for kind in raw.get("content") or ())
    return Slot(raw["name"], place, style, raw.get("explode", style == "form"), is_json, required)


def _swagger_media(tree: Json, operation: Json, raws: list[Json]) -> dict[str, Json]:
    kinds = {raw["in"] for raw in raws}
    consumes = operation.get("consumes") or tree.get("consumes") or []
    if "formData" in kinds:
        forms = [each for each in consumes if "form" in each]
        usual = ["multipart/form-data", "application/x-www-form-urlencoded"]
        return {name: {} for name in forms or usual}
    return {name: {} for name in consumes or ["application/json", "*/*"]} if "body" in kinds else {}


def _follow(tree: Json, node: Any) -> Any:
    for _ in range(20):
        if not isinstance(node, dict) or not isinstance(node.get("$ref"), str):
            return node
        target: Any = tree
        for part in node["$ref"][2:].split("/"):
            target = target[unquote(part).replace("~1", "/").replace("~0", "~")]
        node = target
    return node
