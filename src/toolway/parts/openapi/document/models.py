"""Data classes for a loaded OpenAPI document: operations, parameters, responses, and the selection."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias

from toolway.errors import ArgumentViolation
from toolway.types import Json

ParameterLocation: TypeAlias = Literal["path", "query", "header", "cookie"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tool argument that becomes part of an HTTP request's path, query, headers, or cookies."""

    argument: str  # its key among the tool's arguments
    name: str  # its name in the request
    location: ParameterLocation
    required: bool = False
    style: str = "simple"  # simple, label, matrix, form, spaceDelimited, pipeDelimited, tabDelimited, deepObject
    explode: bool = False
    allow_reserved: bool = False  # :/?#[]@!$&'()*+,;= stay unescaped, as far as that is safe
    allow_empty: bool = False  # an empty value is written as a bare name
    content_type: str = ""  # set if the value is serialized in this format, such as JSON
    user_supplied: bool = False  # you supply it: it is not a tool argument and never encoded


@dataclass(frozen=True, slots=True)
class FormPart:
    """How one field of a form body is encoded: its content type and style, and whether it is a file."""

    content_type: str = ""  # empty: chosen by the value
    style: str = ""  # empty: objects become JSON, lists one field per item
    explode: bool = True
    allow_reserved: bool = False
    is_file: bool = False  # its value may be {"base64": …, "filename": …, "contentType": …}


@dataclass(frozen=True, slots=True)
class BodyContent:
    """One media type that a request body may have, including how its form fields are encoded."""

    media_type: str  # as sent: "application/json"
    parts: dict[str, FormPart] = field(default_factory=dict, repr=False)  # of forms, by field


@dataclass(frozen=True, slots=True)
class RequestBody:
    """The request body of an API operation, and the tool argument that it is made from."""

    argument: str
    contents: tuple[BodyContent, ...]  # the first is the default
    required: bool = False
    type_argument: str = ""  # argument that selects one of the contents; empty if there is only one
    description: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """One response that the OpenAPI document declares for an operation."""

    status: str  # "200", "2XX" or "default"
    description: str = ""
    media_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BaseUrl:
    """A base URL of an API. `url` may be relative to the document's URL."""

    url: str  # variables filled in with their defaults
    description: str = ""


@dataclass(frozen=True, slots=True)
class SecurityScheme:
    """One authentication method that the OpenAPI document declares, such as an API key."""

    name: str
    kind: str  # apiKey, http, oauth2, openIdConnect, mutualTLS
    location: str = ""  # of an apiKey: header, query or cookie
    parameter: str = ""  # the name of that header, query parameter or cookie
    scheme: str = ""  # of http: bearer, basic, …
    flows: Json = field(default_factory=dict, repr=False)  # of oauth2, as in OpenAPI 3
    openid_url: str = ""
    description: str = field(default="", repr=False)


#: Security schemes that are needed together, each with its OAuth scopes.
SecurityRequirement: TypeAlias = dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Operation:
    """One API operation (HTTP method and path) and the MCP tool made from it."""

    name: str  # of the tool
    method: str  # "GET"
    path: str  # the template, as in the document
    parameters: tuple[Parameter, ...] = ()
    body: RequestBody | None = None
    responses: tuple[ApiResponse, ...] = ()
    security: tuple[SecurityRequirement, ...] = ()  # alternatives; an empty requirement means no authentication
    tool: Json = field(default_factory=dict, repr=False)  # the MCP tool definition
    servers: tuple[BaseUrl, ...] = ()  # of this operation only; empty: the document's
    accept: str = "*/*"  # the Accept header
    #: Structured content is {"result": response}, because the response may not be an object. An empty response is {},
    #: which every output schema of ours allows.
    wraps_result: bool = False
    operation_id: str = ""  # as in the document
    tags: tuple[str, ...] = ()
    reserved_query_names: frozenset[str] = frozenset()  # query names that no argument may use: credentials


@dataclass(frozen=True, slots=True)
class SkippedOperation:
    """An API operation that did not become a tool, with the reason."""

    method: str
    path: str
    reason: str  # for you, who can correct it


@dataclass(frozen=True, slots=True)
class ApiDocument:
    """A loaded OpenAPI document: operations with their tools, base URLs and security schemes."""

    title: str
    version: str  # of the API
    dialect: str  # "2.0", "3.0", "3.1"
    servers: tuple[BaseUrl, ...]
    operations: tuple[Operation, ...]
    skipped: tuple[SkippedOperation, ...] = ()
    filtered_out: int = 0  # operations that you did not select
    security_schemes: dict[str, SecurityScheme] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


# -- selection of operations -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OperationFilter:
    """Glob patterns (`*`, `?`) for the tags, paths, methods, and ids of API operations.

    Methods and tags are compared without case.
    """

    tags: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()  # operationId, or the tool's name if there is none

    def matches(self, *, tags: tuple[str, ...], path: str, method: str, operation: str) -> list[bool]:
        """Return whether an API operation matches, for each kind of pattern that this filter sets.

        The kinds are tags, paths, methods, and ids.
        """
        results = []
        if self.tags:
            results.append(any(_matches_any(tag.lower(), self.tags, lower=True) for tag in tags))
        if self.paths:
            results.append(_matches_any(path, self.paths))
        if self.methods:
            results.append(_matches_any(method.lower(), self.methods, lower=True))
        if self.operations:
            results.append(_matches_any(operation, self.operations))
        return results


@dataclass(frozen=True, slots=True)
class OperationSelection:
    """Your include and exclude filters, which decide which API operations become tools.

    An operation is selected if it matches every kind of pattern in `include`, and none in `exclude`.
    """

    include: OperationFilter = OperationFilter()
    exclude: OperationFilter = OperationFilter()

    def selects(self, *, tags: tuple[str, ...], path: str, method: str, operation: str) -> bool:
        """Return True if the operation matches every kind of pattern in `include`, and none in `exclude`."""
        included = self.include.matches(tags=tags, path=path, method=method, operation=operation)
        excluded = self.exclude.matches(tags=tags, path=path, method=method, operation=operation)
        return all(included) and not any(excluded)


ALL_OPERATIONS = OperationSelection()


def _matches_any(text: str, patterns: tuple[str, ...], *, lower: bool = False) -> bool:
    return any(fnmatchcase(text, pattern.lower() if lower else pattern) for pattern in patterns)


# -- errors ------------------------------------------------------------------------------------------------------------


class InvalidDocument(Exception):
    """Raised when an OpenAPI document cannot be used. `reason` and `hint` are for the user."""

    def __init__(self, reason: str, *, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


class UnencodableArguments(ValueError):
    """Raised when tool arguments cannot be encoded as an HTTP request.

    Nothing was sent. The text is for the caller or the model.
    """

    def __init__(self, text: str, violations: tuple[ArgumentViolation, ...] = ()) -> None:
        super().__init__(text)
        self.violations = violations or (ArgumentViolation("$", f"cannot be encoded: {text}"),)
