"""Parameters of an operation → arguments of a tool, and the places they go to."""

from __future__ import annotations

import re
from typing import Any, Final

from toolway.model import Json
from toolway.openapi import swagger, words
from toolway.openapi.naming import Arguments
from toolway.openapi.operation import Parameter, Place
from toolway.openapi.pointers import Pointers, Unresolved
from toolway.openapi.schemas import Converted, Schemas, fitted

MAX_SCHEMA: Final = 2_000  # bytes of JSON; there may be many parameters
PLACES: Final[tuple[Place, ...]] = ("path", "query", "header", "cookie")  # who comes first has the plain name
_STYLES: Final[dict[str, tuple[str, ...]]] = {
    "path": ("simple", "label", "matrix"),
    "query": ("form", "spaceDelimited", "pipeDelimited", "tabDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
}
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_VARIABLE: Final = re.compile(r"\{([^{}/]{1,200})\}")

# OpenAPI itself takes the first three out of a document's hands; the others would change where a request goes, how it
# is framed, or who seems to send it.
_NOT_FOR_DOCUMENTS: Final = frozenset(
    {"accept", "content-type", "authorization", "host", "content-length", "transfer-encoding", "connection", "te"}
    | {"trailer", "upgrade", "keep-alive", "expect", "cookie", "set-cookie", "proxy-authorization", "proxy-connection"}
    | {"accept-encoding", "content-encoding", "forwarded", "via", "http2-settings"}
)


def variables(path: str) -> list[str]:
    """The names between braces, in their order."""
    return list(dict.fromkeys(_VARIABLE.findall(path)))


def collect(shared: Any, own: Any, pointers: Pointers, dialect: str) -> list[Json]:
    """The parameters of an operation, as mappings; its own replace those of its path. Raises `Unresolved`."""
    found: dict[tuple[str, str], Json] = {}
    for each in [*_list(shared), *_list(own)]:
        raw = pointers.object(each)
        if not isinstance(raw.get("name"), str) or not isinstance(raw.get("in"), str):
            raise Unresolved(f"a parameter without name or place: {raw!r}"[:200])
        name = raw["name"].lower() if raw["in"] == "header" else raw["name"]
        found[raw["in"], name] = raw
    if dialect != "2.0":
        return list(found.values())
    return [raw if raw["in"] in ("body", "formData") else swagger.parameter(raw) for raw in found.values()]


class Reader:
    """Makes the parameters of one operation."""

    def __init__(
        self, schemas: Schemas, pointers: Pointers, arguments: Arguments, given: frozenset[tuple[str, str]]
    ) -> None:
        self._schemas = schemas
        self._pointers = pointers
        self._arguments = arguments
        self._given = given  # place and name of what the operator supplies; an empty place means any

    def read(self, raws: list[Json], path: str) -> list[tuple[Parameter, Converted]]:
        """Parameters in the order of their places, each with the schema of its argument."""
        wanted = variables(path)
        missing = set(wanted) - {raw["name"] for raw in raws if raw["in"] == "path"}
        raws = raws + [{"name": name, "in": "path", "schema": {"type": "string"}} for name in wanted if name in missing]
        found: list[tuple[Parameter, Converted]] = []
        for place in PLACES:
            fitting = [raw for raw in raws if raw["in"] == place and _fits(place, raw["name"], wanted)]
            found.extend(self._parameter(raw, place) for raw in fitting)
        odd = [raw for raw in raws if raw["in"] not in (*PLACES, "body", "formData") and raw.get("required") is True]
        if odd:
            raise Unresolved(
                f"the parameter {odd[0]['name'][:80]!r} goes to {odd[0]['in'][:40]!r}, which is no known place"
            )
        return found

    def _parameter(self, raw: Json, place: Place) -> tuple[Parameter, Converted]:
        name = raw["name"]
        key = name.lower() if place == "header" else name
        schema, content_type = self._schema(raw)
        style = raw.get("style") if raw.get("style") in _STYLES[place] else _STYLES[place][0]
        explode = raw.get("explode")
        parameter = Parameter(
            argument=self._arguments.take(name, place),
            name=name,
            place=place,
            required=place == "path" or raw.get("required") is True,
            style=str(style),
            explode=explode if isinstance(explode, bool) else style == "form",
            allow_reserved=raw.get("allowReserved") is True and place == "query",
            allow_empty=raw.get("allowEmptyValue") is True and place == "query",
            content_type=content_type,
            given=not self._given.isdisjoint({("", name), ("", key), (place, key)}),
        )
        return parameter, self._described(raw, fitted(self._schemas.convert(schema), MAX_SCHEMA))

    def _schema(self, raw: Json) -> tuple[Any, str]:
        content = raw.get("content")
        if isinstance(content, dict) and content:
            media, entry = next(iter(content.items()))
            entry = self._pointers.object(entry)
            return entry.get("schema", {}), str(media)
        return raw.get("schema", {}), ""

    def _described(self, raw: Json, converted: Converted) -> Converted:
        text = words.cleaned(raw.get("description"), words.FIELD)
        extra: Json = {"description": text} if text else {}
        if raw.get("deprecated") is True:
            extra["deprecated"] = True
        if not extra:
            return converted
        return Converted({**converted.schema, **extra}, converted.uses, converted.size + len(text) + 20)


def _fits(place: Place, name: str, wanted: list[str]) -> bool:
    if place == "path":
        return name in wanted
    if place == "header":
        return name.lower() not in _NOT_FOR_DOCUMENTS and _TOKEN.fullmatch(name) is not None
    return place == "query" or _TOKEN.fullmatch(name) is not None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
