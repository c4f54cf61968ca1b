"""Loads OpenAPI documents: each operation becomes a tool, or is skipped with a reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from toolway.parts.openapi.document import inputs, param_styles, schema_keywords, swagger2, tool_builder
from toolway.parts.openapi.document.models import (
    ALL_OPERATIONS,
    ApiDocument,
    InvalidDocument,
    Operation,
    OperationSelection,
    SkippedOperation,
)
from toolway.parts.openapi.document.parser import RefResolver, UnresolvedRef, parse_document
from toolway.parts.openapi.document.responses import (
    accept_header,
    read_responses,
    read_security_requirements,
    read_security_schemes,
    read_servers,
    response_schema,
)
from toolway.parts.openapi.document.schema_converter import SchemaConverter
from toolway.types import Json

HTTP_METHODS: Final = ("get", "head", "options", "query", "post", "put", "patch", "delete", "trace")
MAX_OPERATIONS: Final = 10_000
_MAX_WARNINGS: Final = 20


def load_document(
    data: bytes,
    *,
    source: str,
    selection: OperationSelection = ALL_OPERATIONS,
    user_supplied: frozenset[str] = frozenset(),
) -> ApiDocument:
    """Load an OpenAPI document in JSON or YAML: Swagger 2.0 or OpenAPI 3.

    `source` is the document's location, for messages. Parameters in `user_supplied` do not become tool arguments.
    Raises `InvalidDocument` if the document is unreadable, too large, or in another format.
    """
    tree, warnings = parse_document(data, source)
    return _Loader(tree, _detect_dialect(tree, source), selection, user_supplied).build_document(warnings)


@dataclass(frozen=True, slots=True)
class _RawOperation:
    """An API operation as written in the OpenAPI document, before conversion to a tool."""

    path: str
    method: str
    raw: Json
    item: Json  # the path item that contains it

    @property
    def operation_id(self) -> str:
        value = self.raw.get("operationId")
        return value if isinstance(value, str) else ""

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(swagger2.string_list(self.raw.get("tags")))


class _Loader:
    """Builds the `ApiDocument` for one parsed OpenAPI document."""

    def __init__(self, tree: Json, dialect: str, selection: OperationSelection, user_supplied: frozenset[str]) -> None:
        self._tree = tree
        self._dialect = dialect
        self._selection = selection
        self._refs = RefResolver(tree)
        self._inputs = SchemaConverter(self._refs, "input")
        self._forms = SchemaConverter(self._refs, "form")
        self._outputs = SchemaConverter(self._refs, "output")
        self._bodies = inputs.BodyReader(self._inputs, self._forms, self._refs)
        self._schemes = read_security_schemes(tree, dialect, self._refs)
        self._security = read_security_requirements(tree.get("security"))
        self._user_supplied = frozenset(("", name) for name in user_supplied) | frozenset(
            (each.location, each.parameter.lower() if each.location == "header" else each.parameter)
            for each in self._schemes.values()
            if each.kind == "apiKey"
        )
        self._reserved_query_names = frozenset(name for place, name in self._user_supplied if place in ("", "query"))
        self._skipped: list[SkippedOperation] = []

    def build_document(self, warnings: list[str]) -> ApiDocument:
        found = self._find_operations()
        names = tool_builder.unique_names(
            (tool_builder.base_tool_name(each.operation_id, each.method, each.path), each.method, each.path)
            for each in found
        )
        selected = [(each, name) for each, name in zip(found, names, strict=True) if self._is_selected(each, name)]
        operations = [
            operation for each, name in selected if (operation := self._build_operation(each, name)) is not None
        ]
        info = self._tree.get("info")
        info = info if isinstance(info, dict) else {}
        raw = swagger2.convert_servers(self._tree) if self._dialect == "2.0" else self._tree.get("servers")
        return ApiDocument(
            title=schema_keywords.clean_text(info.get("title"), 100),
            version=str(info.get("version", ""))[:40],
            dialect=self._dialect,
            servers=read_servers(raw),
            operations=tuple(operations),
            skipped=tuple(self._skipped),
            filtered_out=len(found) - len(selected),
            security_schemes=self._schemes,
            warnings=tuple(
                dict.fromkeys([*warnings, *self._inputs.warnings, *self._forms.warnings, *self._outputs.warnings])
            )[:_MAX_WARNINGS],
        )

    def _find_operations(self) -> list[_RawOperation]:
        found: list[_RawOperation] = []
        paths = self._tree.get("paths")
        for path, each in paths.items() if isinstance(paths, dict) else ():
            if path.startswith("x-") or each is None:
                continue
            try:
                item = self._refs.resolve_object(each)
            except UnresolvedRef as exc:
                self._skipped.append(SkippedOperation("*", path[:200], str(exc)))
                continue
            found.extend(
                _RawOperation(path, method.upper(), item[method], item)
                for method in HTTP_METHODS
                if isinstance(item.get(method), dict)
            )
        if len(found) > MAX_OPERATIONS:
            raise InvalidDocument(
                f"the document has more than {MAX_OPERATIONS:,} operations", hint="keep only the operations you need"
            )
        return found

    def _is_selected(self, found: _RawOperation, name: str) -> bool:
        return self._selection.selects(
            tags=found.tags, path=found.path, method=found.method, operation=found.operation_id or name
        )

    def _build_operation(self, found: _RawOperation, name: str) -> Operation | None:
        try:
            operation = self._read_operation(found, name)
            reason = _path_problem(found.path) or tool_builder.validate_tool(operation.tool)
        except UnresolvedRef as exc:
            operation, reason = None, str(exc)
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as exc:
            operation, reason = None, f"it is not valid OpenAPI: {str(exc) or type(exc).__name__}"[:300]
        if reason is None:
            return operation
        self._skipped.append(SkippedOperation(found.method, found.path[:200], reason))
        return None

    def _read_operation(self, found: _RawOperation, name: str) -> Operation:
        raw_parameters = inputs.collect_parameters(
            found.item.get("parameters"), found.raw.get("parameters"), self._refs, self._dialect
        )
        arguments = tool_builder.ArgumentNames()
        reader = inputs.ParameterReader(self._inputs, self._refs, arguments, self._user_supplied)
        parameter_schemas = reader.read_parameters(raw_parameters, found.path)
        body, body_schemas = None, []
        raw_body = self._raw_body(found, raw_parameters)
        if raw_body is not None:
            body_and_schemas = self._bodies.read_body(raw_body, arguments)
            body, body_schemas = body_and_schemas if body_and_schemas is not None else (None, [])
        responses = read_responses(
            found.raw.get("responses"), self._refs, self._dialect, self._media_types(found, "produces")
        )
        result_schema = response_schema(responses, self._outputs) if found.method != "HEAD" else None
        title, description = schema_keywords.operation_texts(found.raw, found.method, found.path)
        tool: Json = {"name": name} | ({"title": title} if title else {}) | {"description": description}
        tool["inputSchema"] = tool_builder.build_input_schema(parameter_schemas, body, body_schemas, self._inputs)
        if result_schema is not None:
            tool["outputSchema"] = tool_builder.build_output_schema(result_schema[0], self._outputs)
        tool["annotations"] = tool_builder.method_annotations(found.method)
        security = found.raw.get("security")
        return Operation(
            name=name,
            method=found.method,
            path=found.path,
            parameters=tuple(parameter for parameter, _ in parameter_schemas),
            body=body,
            responses=tuple(response for response, _ in responses),
            security=self._security if security is None else read_security_requirements(security),
            tool=tool,
            servers=read_servers(found.raw.get("servers")) or read_servers(found.item.get("servers")),
            accept=accept_header(responses),
            wraps_result=result_schema is not None and result_schema[1],
            operation_id=found.operation_id,
            tags=found.tags,
            reserved_query_names=self._reserved_query_names,
        )

    def _raw_body(self, found: _RawOperation, raw_parameters: list[Json]) -> Any:
        if self._dialect == "2.0":
            return inputs.swagger_body(raw_parameters, self._media_types(found, "consumes"))
        return found.raw.get("requestBody")

    def _media_types(self, found: _RawOperation, word: str) -> list[str]:
        own = found.raw.get(word)
        return swagger2.string_list(own if own is not None else self._tree.get(word))


def _detect_dialect(tree: Json, source: str) -> str:
    version = str(tree.get("openapi", tree.get("swagger", "")))
    if version.startswith("2."):
        return "2.0"
    if version.startswith("3.0"):
        return "3.0"
    if version.startswith("3."):
        return "3.1"
    if not version:
        raise InvalidDocument(
            f"{source} is not an OpenAPI document: it has no `openapi` or `swagger` field",
            hint="use the URL of the document itself, not of a page about it",
        )
    raise InvalidDocument(
        f"{source} has the unsupported version OpenAPI {version[:20]}", hint="convert it to OpenAPI 3.1"
    )


def _path_problem(path: str) -> str | None:
    if not path.startswith("/"):
        return "its path does not begin with /: use the full path"
    if path.startswith("//") or param_styles.has_dot_segments(path.partition("?")[0]):
        return "its path leaves the base URL of the API: remove // and dot segments"
    return None
