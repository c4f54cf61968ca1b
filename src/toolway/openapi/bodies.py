"""The body of an operation → one argument, and the ways in which it can be written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from toolway.model import Json
from toolway.openapi import keywords, media, swagger, words
from toolway.openapi.naming import Arguments
from toolway.openapi.operation import Body, Content, Part
from toolway.openapi.pointers import Pointers, Unresolved
from toolway.openapi.schemas import Converted, Schemas

_MOST: Final = 10  # media types of one body


def of_swagger(parameters: list[Json], consumes: list[str]) -> Json | None:
    """The body of a 2.0 operation, in the words of 3."""
    whole = next((raw for raw in parameters if raw["in"] == "body"), None)
    if whole is not None:
        return swagger.body(whole, consumes)
    fields = [raw for raw in parameters if raw["in"] == "formData"]
    return swagger.form(fields, consumes) if fields else None


@dataclass(frozen=True, slots=True)
class _Ways:
    """The ways in which a body can be written, and their schemas without those that say the same."""

    raw: Json
    contents: tuple[Content, ...]
    schemas: list[tuple[Converted, Schemas]]


class Reader:
    """Makes the bodies of a document; one that many operations refer to is made once."""

    def __init__(self, inputs: Schemas, forms: Schemas, pointers: Pointers) -> None:
        self._inputs = inputs
        self._forms = forms
        self._pointers = pointers
        self._known: dict[int, _Ways] = {}  # by identity of what stands in the document, which they keep

    def read(self, raw: Any, arguments: Arguments) -> tuple[Body, list[tuple[Converted, Schemas]]] | None:
        """The body, and the schemas of its ways of writing. Raises `Unresolved`."""
        raw = self._pointers.object(raw)
        ways = self._known.get(id(raw))
        if ways is None:
            ways = self._known[id(raw)] = self._ways(raw)
        if not ways.contents:
            return None
        body = Body(
            argument=arguments.take("body", "body"),
            contents=ways.contents,
            required=raw.get("required") is True,
            type_argument=arguments.take("contentType", "body") if len(ways.contents) > 1 else "",
            description=words.cleaned(raw.get("description"), words.FIELD),
        )
        return body, ways.schemas

    def _ways(self, raw: Json) -> _Ways:
        said = raw.get("content")
        content: Json = said if isinstance(said, dict) else {}
        contents: list[Content] = []
        schemas: list[tuple[Converted, Schemas]] = []
        for name in _names(content):
            entry = self._pointers.object(content[name]) if content[name] is not None else {}
            made, schema, maker = self._content(name, entry)
            if all(made.media_type != known.media_type for known in contents):
                contents.append(made)
            if all(schema.schema != known.schema for known, _ in schemas):
                schemas.append((schema, maker))
        return _Ways(raw, tuple(contents), schemas)

    def _content(self, name: str, entry: Json) -> tuple[Content, Converted, Schemas]:
        node, kind = entry.get("schema", {}), media.kind(name)
        parts = self._parts(node, entry.get("encoding")) if kind in ("form", "multipart") else {}
        maker = self._forms if any(part.is_file for part in parts.values()) else self._inputs
        if kind in ("text", "xml"):
            said = keywords.notes(node) if isinstance(node, dict) else {}
            schema = Converted(
                {"type": "string", **(said or {"description": f"The text of the {media.bare(name)}."})}, (), 60
            )
        elif kind == "bytes":
            schema = Converted(keywords.FILE, (), 300)
        else:
            schema = maker.unfold(maker.convert(node))
        return Content(media.sent(name), parts), schema, maker

    def _parts(self, node: Any, encoding: Any) -> dict[str, Part]:
        """What is special about the fields of a form."""
        found: dict[str, Part] = {}
        for name, field in self._fields(node).items():
            if self._is_file(field):
                found[name] = Part(content_type="application/octet-stream", is_file=True)
        for name, said in encoding.items() if isinstance(encoding, dict) else ():
            if isinstance(said, dict):
                found[name] = _part(said, is_file=name in found)
        return found

    def _fields(self, node: Any) -> Json:
        node = self._resolved(node)
        if not isinstance(node, dict):
            return {}
        fields = dict(node["properties"]) if isinstance(node.get("properties"), dict) else {}
        for word in ("allOf", "anyOf", "oneOf"):
            for branch in node[word] if isinstance(node.get(word), list) else ():
                inner = self._resolved(branch)
                if isinstance(inner, dict) and isinstance(inner.get("properties"), dict):
                    fields |= inner["properties"]
        return fields

    def _is_file(self, field: Any) -> bool:
        field = self._resolved(field)
        if not isinstance(field, dict):
            return False
        inner = [field.get("items"), *(field.get("anyOf") or ()), *(field.get("oneOf") or ())]
        return keywords.is_file(field) or any(keywords.is_file(self._resolved(each)) for each in inner)

    def _resolved(self, node: Any) -> Any:
        try:
            return self._pointers.follow(node)
        except Unresolved:
            return None


def _names(content: Json) -> list[str]:
    """The media types of a body, best first. XML is a text that a model would have to write; nobody wants that where
    the same can be said in JSON."""
    named = sorted((name for name in content if media.is_sendable(name)), key=media.rank)
    return [name for name in named[:_MOST] if media.kind(name) != "xml" or media.kind(named[0]) == "xml"]


def _part(said: Json, *, is_file: bool) -> Part:
    types = said.get("contentType")
    first = types.partition(",")[0].strip() if isinstance(types, str) else ""
    style = (
        said.get("style")
        if said.get("style") in ("form", "spaceDelimited", "pipeDelimited", "tabDelimited", "deepObject")
        else ""
    )
    explode = said.get("explode")
    return Part(
        content_type=first if media.is_sendable(first) and "*" not in first else "application/octet-stream" * is_file,
        style=str(style),
        explode=explode if isinstance(explode, bool) else style in ("form", ""),
        allow_reserved=said.get("allowReserved") is True,
        is_file=is_file,
    )
