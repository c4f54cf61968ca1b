"""What a document says, once it is read: operations, where each argument goes, what answers are promised."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from toolway.model import Json

Place: TypeAlias = Literal["path", "query", "header", "cookie"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument that goes into the head of the request."""

    argument: str  # its key among the tool's arguments
    name: str  # its name in the request
    place: Place
    required: bool = False
    style: str = "simple"  # simple, label, matrix, form, spaceDelimited, pipeDelimited, tabDelimited, deepObject
    explode: bool = False
    allow_reserved: bool = False  # its value may contain :/?#[]@!$&'()*+,;= as they are, as far as that is safe
    allow_empty: bool = False  # an empty value is written as a bare name
    content_type: str = ""  # where the value is written in a format of its own, as JSON is
    given: bool = False  # the operator supplies it: it is no argument of the tool, and never encoded


@dataclass(frozen=True, slots=True)
class Part:
    """How one field of a form is written."""

    content_type: str = ""  # empty: as the value wants it
    style: str = ""  # empty: objects are written as JSON, lists as one field for each item
    explode: bool = True
    allow_reserved: bool = False
    is_file: bool = False  # its value may be {"base64": …, "filename": …, "contentType": …}


@dataclass(frozen=True, slots=True)
class Content:
    """One way in which a body can be written."""

    media_type: str  # as it is sent: "application/json"
    parts: dict[str, Part] = field(default_factory=dict, repr=False)  # of forms, by field


@dataclass(frozen=True, slots=True)
class Body:
    """The argument that becomes the body."""

    argument: str
    contents: tuple[Content, ...]  # the first is used where the caller names none
    required: bool = False
    type_argument: str = ""  # the argument that names one of the contents; empty where there is no choice
    description: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Response:
    """One kind of answer that the document knows."""

    status: str  # "200", "2XX" or "default"
    description: str = ""
    media_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Base:
    """Where an API is. `url` may be relative to the place of the document."""

    url: str  # variables filled in with their defaults
    description: str = ""


@dataclass(frozen=True, slots=True)
class SecurityScheme:
    """One way to prove who one is."""

    name: str
    kind: str  # apiKey, http, oauth2, openIdConnect, mutualTLS
    place: str = ""  # of an apiKey: header, query or cookie
    parameter: str = ""  # the name of that header, query parameter or cookie
    scheme: str = ""  # of http: bearer, basic, …
    flows: Json = field(default_factory=dict, repr=False)  # of oauth2, as in OpenAPI 3
    openid_url: str = ""
    description: str = field(default="", repr=False)


#: Schemes that are needed together, each with its OAuth scopes.
Requirement: TypeAlias = dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation, and the tool it is."""

    name: str  # of the tool
    method: str  # "GET"
    path: str  # the template, as in the document
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    responses: tuple[Response, ...] = ()
    security: tuple[Requirement, ...] = ()  # any of them will do; an empty requirement means that none is needed
    tool: Json = field(default_factory=dict, repr=False)  # the MCP tool definition
    servers: tuple[Base, ...] = ()  # of this operation alone; empty where the document's are meant
    accept: str = "*/*"  # what the answer may be
    #: Structured content is {"result": answer}, because the answer need not be an object. An empty answer is {}, which
    #: every output schema of ours allows.
    wraps: bool = False
    operation_id: str = ""  # as in the document
    tags: tuple[str, ...] = ()
    reserved: frozenset[str] = frozenset()  # names in a query that no argument may use: credentials


@dataclass(frozen=True, slots=True)
class SetAside:
    """An operation that is no tool, and why."""

    method: str
    path: str
    reason: str  # for a person, who can do something about it


@dataclass(frozen=True, slots=True)
class Document:
    """A document that was read."""

    title: str
    version: str  # of the API
    dialect: str  # "2.0", "3.0", "3.1"
    servers: tuple[Base, ...]
    operations: tuple[Operation, ...]
    set_aside: tuple[SetAside, ...] = ()
    left_out: int = 0  # operations that the operator did not choose
    security_schemes: dict[str, SecurityScheme] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
