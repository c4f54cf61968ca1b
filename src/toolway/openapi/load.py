"""Bytes of a document → `Document`: every operation is a tool, or set aside with a reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from toolway.model import Json
from toolway.openapi import access, answers, bodies, naming, parameters, places, swagger, tools, words
from toolway.openapi.choice import EVERYTHING, Choice
from toolway.openapi.operation import Document, Operation, SetAside
from toolway.openapi.pointers import Pointers, Unresolved
from toolway.openapi.problems import BadDocument
from toolway.openapi.reading import read
from toolway.openapi.schemas import Schemas

METHODS: Final = ("get", "head", "options", "query", "post", "put", "patch", "delete", "trace")
MAX_OPERATIONS: Final = 10_000
_MOST_WARNINGS: Final = 20


def load(data: bytes, *, where: str, choose: Choice = EVERYTHING, given: frozenset[str] = frozenset()) -> Document:
    """Read a document, JSON or YAML, Swagger 2.0 or OpenAPI 3. `where` is its place, for messages. Parameters that are
    `given` are supplied by the operator and are no arguments. Raises `BadDocument`."""
    tree, odd = read(data, where)
    return _Loader(tree, _dialect(tree, where), choose, given).document(odd)


@dataclass(frozen=True, slots=True)
class _Found:
    """An operation as the document has it."""

    path: str
    method: str
    raw: Json
    item: Json  # the path that it belongs to

    @property
    def operation_id(self) -> str:
        said = self.raw.get("operationId")
        return said if isinstance(said, str) else ""

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(swagger.texts(self.raw.get("tags")))


class _Loader:
    def __init__(self, tree: Json, dialect: str, choose: Choice, given: frozenset[str]) -> None:
        self._tree = tree
        self._dialect = dialect
        self._choose = choose
        self._pointers = Pointers(tree)
        self._inputs = Schemas(self._pointers, "input")
        self._forms = Schemas(self._pointers, "form")
        self._outputs = Schemas(self._pointers, "output")
        self._bodies = bodies.Reader(self._inputs, self._forms, self._pointers)
        self._schemes = access.schemes(tree, dialect, self._pointers)
        self._security = access.requirements(tree.get("security"))
        self._given = frozenset(("", name) for name in given) | frozenset(
            (each.place, each.parameter.lower() if each.place == "header" else each.parameter)
            for each in self._schemes.values()
            if each.kind == "apiKey"
        )
        self._reserved = frozenset(name for place, name in self._given if place in ("", "query"))
        self._set_aside: list[SetAside] = []

    def document(self, odd: list[str]) -> Document:
        found = self._find()
        names = naming.settle(
            (naming.of_operation(each.operation_id, each.method, each.path), each.method, each.path) for each in found
        )
        wanted = [(each, name) for each, name in zip(found, names, strict=True) if self._wants(each, name)]
        operations = [operation for each, name in wanted if (operation := self._operation(each, name)) is not None]
        info = self._tree.get("info")
        info = info if isinstance(info, dict) else {}
        raw = swagger.servers(self._tree) if self._dialect == "2.0" else self._tree.get("servers")
        return Document(
            title=words.cleaned(info.get("title"), 100),
            version=str(info.get("version", ""))[:40],
            dialect=self._dialect,
            servers=access.bases(raw),
            operations=tuple(operations),
            set_aside=tuple(self._set_aside),
            left_out=len(found) - len(wanted),
            security_schemes=self._schemes,
            warnings=tuple(dict.fromkeys([*odd, *self._inputs.open, *self._forms.open, *self._outputs.open]))[
                :_MOST_WARNINGS
            ],
        )

    def _find(self) -> list[_Found]:
        found: list[_Found] = []
        paths = self._tree.get("paths")
        for path, each in paths.items() if isinstance(paths, dict) else ():
            if path.startswith("x-") or each is None:
                continue
            try:
                item = self._pointers.object(each)
            except Unresolved as exc:
                self._set_aside.append(SetAside("*", path[:200], str(exc)))
                continue
            found.extend(
                _Found(path, method.upper(), item[method], item)
                for method in METHODS
                if isinstance(item.get(method), dict)
            )
        if len(found) > MAX_OPERATIONS:
            raise BadDocument(
                f"the document has more than {MAX_OPERATIONS:,} operations", fix="cut it to what is needed"
            )
        return found

    def _wants(self, found: _Found, name: str) -> bool:
        return self._choose.wants(
            tags=found.tags, path=found.path, method=found.method, operation=found.operation_id or name
        )

    def _operation(self, found: _Found, name: str) -> Operation | None:
        try:
            operation = self._read(found, name)
            reason = _bad_path(found.path) or tools.problem(operation.tool)
        except Unresolved as exc:
            operation, reason = None, str(exc)
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as exc:
            operation, reason = None, f"it is not written as OpenAPI wants it: {str(exc) or type(exc).__name__}"[:300]
        if reason is None:
            return operation
        self._set_aside.append(SetAside(found.method, found.path[:200], reason))
        return None

    def _read(self, found: _Found, name: str) -> Operation:
        raws = parameters.collect(
            found.item.get("parameters"), found.raw.get("parameters"), self._pointers, self._dialect
        )
        arguments = naming.Arguments()
        reader = parameters.Reader(self._inputs, self._pointers, arguments, self._given)
        head = reader.read(raws, found.path)
        body, ways = None, []
        raw_body = self._raw_body(found, raws)
        if raw_body is not None:
            made = self._bodies.read(raw_body, arguments)
            body, ways = made if made is not None else (None, [])
        replies = answers.read(
            found.raw.get("responses"), self._pointers, self._dialect, self._media(found, "produces")
        )
        promised = answers.output(replies, self._outputs) if found.method != "HEAD" else None
        title, description = words.of_operation(found.raw, found.method, found.path)
        tool: Json = {"name": name} | ({"title": title} if title else {}) | {"description": description}
        tool["inputSchema"] = tools.input_schema(head, body, ways, self._inputs)
        if promised is not None:
            tool["outputSchema"] = tools.output_schema(promised[0], self._outputs)
        tool["annotations"] = tools.annotations_of(found.method)
        security = found.raw.get("security")
        return Operation(
            name=name,
            method=found.method,
            path=found.path,
            parameters=tuple(parameter for parameter, _ in head),
            body=body,
            responses=tuple(response for response, _ in replies),
            security=self._security if security is None else access.requirements(security),
            tool=tool,
            servers=access.bases(found.raw.get("servers")) or access.bases(found.item.get("servers")),
            accept=answers.accept(replies),
            wraps=promised is not None and promised[1],
            operation_id=found.operation_id,
            tags=found.tags,
            reserved=self._reserved,
        )

    def _raw_body(self, found: _Found, raws: list[Json]) -> Any:
        if self._dialect == "2.0":
            return bodies.of_swagger(raws, self._media(found, "consumes"))
        return found.raw.get("requestBody")

    def _media(self, found: _Found, word: str) -> list[str]:
        own = found.raw.get(word)
        return swagger.texts(own if own is not None else self._tree.get(word))


def _dialect(tree: Json, where: str) -> str:
    said = str(tree.get("openapi", tree.get("swagger", "")))
    if said.startswith("2."):
        return "2.0"
    if said.startswith("3.0"):
        return "3.0"
    if said.startswith("3."):
        return "3.1"
    if not said:
        raise BadDocument(
            f"{where} is no OpenAPI document: it has no `openapi` or `swagger` field",
            fix="name the document itself, not a page about it",
        )
    raise BadDocument(f"{where} is written in OpenAPI {said[:20]}", fix="convert it to OpenAPI 3.1")


def _bad_path(path: str) -> str | None:
    if not path.startswith("/"):
        return "its path does not begin with /: write it as the server knows it"
    if path.startswith("//") or places.leads_away(path.partition("?")[0]):
        return "its path leads out of the place of the API: write it without // and dots"
    return None
