"""A document becomes tools: names, arguments, choices, credentials, and what is set aside."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.parts.openapi import real_documents
from tests.parts.openapi.generated_documents import document, operation, parameter
from toolway.parts.openapi.document import tool_builder
from toolway.parts.openapi.document.loader import load_document
from toolway.parts.openapi.document.models import (
    ApiDocument,
    BaseUrl,
    InvalidDocument,
    OperationFilter,
    OperationSelection,
    UnencodableArguments,
)
from toolway.parts.openapi.document.request_encoder import encode_operation
from toolway.types import Json


def named(*operations: tuple[str, str, str]) -> list[str]:
    paths: dict[str, Json] = {}
    for method, path, operation_id in operations:
        paths.setdefault(path, {})[method] = {"operationId": operation_id} if operation_id else {}
    return [each.name for each in document(paths).operations]


@pytest.mark.parametrize(
    ("method", "path", "operation_id", "name"),
    [
        ("get", "/users/{id}", "getUser", "getUser"),
        ("get", "/users/{id}", "users/get-by.id", "users_get-by_id"),
        ("get", "/users/{id}/posts", "", "get_users_id_posts"),
        ("post", "/", "", "post"),
        ("get", "/a", "Ünï côdé", "n_c_d"),
        ("get", "/a", "日本", "get_a"),
    ],
)
def test_tool_name_comes_from_operation_or_path(method: str, path: str, operation_id: str, name: str) -> None:
    assert named((method, path, operation_id)) == [name]


def test_colliding_names_are_distinct_and_stable() -> None:
    one, two, three = named(("get", "/a", "same"), ("post", "/a", "same"), ("get", "/b", "other"))
    assert one != two and one.startswith("same_") and two.startswith("same_") and three == "other"
    assert named(("get", "/c", "same"), ("get", "/a", "same"))[1] == one


def test_long_name_is_cut_and_stays_unique() -> None:
    one, two = named(("get", "/a", "x" * 60 + "one"), ("get", "/b", "x" * 60 + "two"))
    assert one != two and len(one) == len(two) == tool_builder.MAX_TOOL_NAME


def test_equal_parameter_names_get_distinct_arguments() -> None:
    places = ("cookie", "header", "query", "path")
    listed = [parameter("id", place) for place in places] + [parameter("body", "query"), parameter("id_query", "query")]
    raw = {"parameters": listed, "requestBody": {"content": {"application/json": {}}}}
    of = operation(raw, path="/things/{id}", method="post")
    found = [(each.argument, each.location, each.name) for each in of.parameters]
    assert found[:3] == [("id", "path", "id"), ("id_query", "query", "id"), ("body", "query", "body")]
    assert found[3:5] == [("id_query_query", "query", "id_query"), ("id_header", "header", "id")]
    assert found[5:] == [("id_cookie", "cookie", "id")]
    assert of.body is not None and of.body.argument == "body_body"
    assert set(of.tool["inputSchema"]["properties"]) == {*(each.argument for each in of.parameters), "body_body"}


@pytest.mark.parametrize(
    ("name", "argument"),
    [("$filter", "filter"), ("page[size]", "page_size"), ("a b", "a_b"), ("é", "query"), ("x" * 99, "x" * 64)],
)
def test_argument_names_are_valid_for_models(name: str, argument: str) -> None:
    of = operation({"parameters": [parameter(name, "query")]})
    assert [each.argument for each in of.parameters] == [argument]


def test_undeclared_path_variable_is_a_string() -> None:
    of = operation({"parameters": [parameter("gone", "path")]}, path="/things/{id}/{id}")
    assert of.tool["inputSchema"] == {
        "type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"], "additionalProperties": False,
    }  # fmt: skip
    assert encode_operation(of, {"id": "x"}).target == "/things/x/x"


def test_path_parameters_apply_unless_operation_overrides() -> None:
    shared = [parameter("a", "query", description="shared"), parameter("X-B", "header")]
    own = [
        parameter("a", "query", description="own"),
        {"$ref": "#/components/parameters/C"},
        parameter("x-b", "header", description="too"),
    ]
    paths = {"/a": {"parameters": shared, "get": {"parameters": own}, "post": {}}}
    made = document(paths, components={"parameters": {"C": parameter("c", "query")}})
    get, post = (each.tool["inputSchema"]["properties"] for each in made.operations)
    assert get == {"a": {"description": "own"}, "c": {}, "x-b": {"description": "too"}}
    assert post == {"a": {"description": "shared"}, "X-B": {}}


def test_method_sets_annotations() -> None:
    methods = ("get", "head", "options", "put", "delete", "post", "patch")
    made = document({"/a": {method: {} for method in methods}})
    hints = {each.method: each.tool["annotations"] for each in made.operations}
    assert [method for method in hints if hints[method]["readOnlyHint"]] == ["GET", "HEAD", "OPTIONS"]
    assert [method for method in hints if hints[method]["idempotentHint"]] == [
        "GET",
        "HEAD",
        "OPTIONS",
        "PUT",
        "DELETE",
    ]


def test_descriptions_are_short_and_clean() -> None:
    raw = {
        "summary": "Get it",
        "description": "See [the docs](https://x.example/y).<br/>\u200bBold.\x07 " + "More words. " * 500,
        "deprecated": True,
    }
    tool = operation(raw).tool
    assert tool["title"] == "Get it"
    assert tool["description"].startswith("Deprecated. Get it\n\nSee the docs. Bold. More words.")
    assert len(tool["description"]) < 1100 and tool["description"].endswith(". …")
    assert operation({}).tool["description"] == "GET /things"


# -- what the operator says -------------------------------------------------------------------------------------------

PATHS = {
    "/users": {
        "get": {"operationId": "listUsers", "tags": ["Users"]},
        "post": {"operationId": "addUser", "tags": ["users", "admin"]},
    },
    "/pets/{id}": {"get": {"tags": ["pets"]}, "delete": {"operationId": "deletePet", "tags": ["pets"]}},
}


def chosen(include: OperationFilter = OperationFilter(), exclude: OperationFilter = OperationFilter()) -> list[str]:  # noqa: B008  they are frozen
    data = json.dumps({"openapi": "3.1.0", "info": {}, "paths": PATHS}).encode()
    made = load_document(data, source="doc", selection=OperationSelection(include, exclude))
    assert made.filtered_out == 4 - len(made.operations)
    return [each.name for each in made.operations]


def test_operations_are_filtered_by_tag_path_method_and_id() -> None:
    assert chosen() == ["listUsers", "addUser", "get_pets_id", "deletePet"]
    assert chosen(OperationFilter(tags=("users",))) == ["listUsers", "addUser"]
    assert chosen(OperationFilter(methods=("GET",))) == ["listUsers", "get_pets_id"]
    assert chosen(OperationFilter(paths=("/pets/*",), methods=("get",))) == ["get_pets_id"]
    assert chosen(OperationFilter(operations=("*User*", "get_pets_id"))) == ["listUsers", "addUser", "get_pets_id"]
    assert chosen(exclude=OperationFilter(methods=("delete",), tags=("Admin",))) == ["listUsers", "get_pets_id"]
    assert chosen(OperationFilter(tags=("pets",)), OperationFilter(operations=("delete*",))) == ["get_pets_id"]


def test_names_do_not_depend_on_filters() -> None:
    data = json.dumps(
        {"openapi": "3.1.0", "paths": {"/a": {"get": {"operationId": "x"}, "put": {"operationId": "x"}}}}
    ).encode()
    every = load_document(data, source="doc").operations[0].name
    assert (
        load_document(data, source="doc", selection=OperationSelection(OperationFilter(methods=("get",))))
        .operations[0]
        .name
        == every
    )


def test_user_supplied_parameter_is_not_an_argument() -> None:
    raws = [parameter("token", "query", required=True), parameter("X-Key", "header"), parameter("q", "query")]
    scheme = {"securitySchemes": {"k": {"type": "apiKey", "in": "header", "name": "x-key"}}}
    data = json.dumps(
        {"openapi": "3.1.0", "paths": {"/a": {"get": {"parameters": raws}}}, "components": scheme}
    ).encode()
    (of,) = load_document(data, source="doc", user_supplied=frozenset({"token"})).operations
    assert set(of.tool["inputSchema"]["properties"]) == {"q"} and "required" not in of.tool["inputSchema"]
    assert encode_operation(of, {"q": "1"}).target == "/a?q=1"
    for name in ("token", "X-Key"):
        with pytest.raises(UnencodableArguments, match="unknown"):
            encode_operation(of, {name: "1"})


def test_servers_security_and_schemes() -> None:
    url = {
        "url": "https://{region}.x.example/{v}",
        "variables": {"region": {"default": "eu"}, "v": {"enum": ["v2", "v1"]}},
    }
    schemes: Json = {
        "key": {"type": "apiKey", "in": "query", "name": "k"},
        "web": {"type": "http", "scheme": "Bearer"},
        "oauth": {"type": "oauth2", "flows": {"clientCredentials": {"tokenUrl": "https://t", "scopes": {"a": ""}}}},
    }
    paths: Json = {
        "/a": {
            "get": {"security": [{"oauth": ["a"], "key": []}, {}]},
            "put": {"security": [], "servers": [{"url": "/other"}]},
            "post": {},
        }
    }
    made = document(
        paths, servers=[url, {"url": "https://{none}"}], components={"securitySchemes": schemes}, security=[{"web": []}]
    )
    assert made.servers == (BaseUrl("https://eu.x.example/v2"),)
    assert [(each.method, each.security, each.servers) for each in made.operations] == [
        ("GET", ({"oauth": ("a",), "key": ()}, {}), ()),
        ("POST", ({"web": ()},), ()),
        ("PUT", (), (BaseUrl("/other"),)),
    ]
    assert made.security_schemes["web"].scheme == "bearer" and made.security_schemes["key"].parameter == "k"


def test_swagger_servers_and_security() -> None:
    definitions = {
        "basic": {"type": "basic"},
        "oauth": {
            "type": "oauth2",
            "flow": "accessCode",
            "authorizationUrl": "https://a",
            "tokenUrl": "https://t",
            "scopes": {},
        },
    }
    made = document(
        {}, "2.0", host="x.example", basePath="/v1", schemes=["http", "https", "ws"], securityDefinitions=definitions
    )
    assert [base.url for base in made.servers] == ["https://x.example/v1", "http://x.example/v1"]
    assert made.security_schemes["basic"].scheme == "basic"
    assert made.security_schemes["oauth"].flows == {
        "authorizationCode": {"authorizationUrl": "https://a", "tokenUrl": "https://t", "scopes": {}}
    }
    assert [base.url for base in document({}, "2.0", basePath="/v1").servers] == ["/v1"]


# -- what is set aside ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "raw", "why"),
    [
        ("users", {}, "begin with /"),
        ("//evil.example/x", {}, "leaves the base URL"),
        ("/a/../b", {}, "leaves the base URL"),
        ("/a/%2e%2e/b", {}, "leaves the base URL"),
        (
            "/a",
            {"parameters": [{"$ref": "#/components/parameters/None"}]},
            "the document has no #/components/parameters/None",
        ),
        ("/a", {"parameters": [{"name": "x"}]}, "no name or location"),
        ("/a", {"parameters": [parameter("x", "querystring", required=True)]}, "unknown location"),
        ("/a", {"requestBody": {"$ref": "other.json"}}, "bundle"),
    ],
)
def test_skipped_operation_has_a_reason(path: str, raw: Json, why: str) -> None:
    made = document({path: {"post": raw}, "/good": {"get": {}}})
    assert [each.name for each in made.operations] == ["get_good"]
    (aside,) = made.skipped
    assert (aside.method, aside.path) == ("POST", path) and why in aside.reason


def references(count: int) -> Json:
    """Much that refers to one large thing."""
    fields = {
        f"f{n}": {"type": "object", "properties": {"x": {"enum": list(range(150)), "description": "d" * 300}}}
        for n in range(2000)
    }
    operations = {
        f"/p{n}": {"post": {
            "parameters": [{"$ref": "#/components/parameters/P"}],
            "requestBody": {"$ref": "#/components/requestBodies/B"},
            "responses": {"200": {"$ref": "#/components/responses/R"}},
        }}
        for n in range(count)
    }  # fmt: skip
    schema = {"$ref": "#/components/schemas/S"}
    content = {
        "content": {"application/json": {"schema": {"allOf": [schema] * 50}}, "multipart/form-data": {"schema": schema}}
    }
    components = {
        "schemas": {"S": {"type": "object", "properties": fields}},
        "parameters": {"P": {"name": "p", "in": "query", "schema": {"type": "object", "properties": fields}}},
        "requestBodies": {"B": content},
        "responses": {"R": content},
    }
    return {"openapi": "3.0.0", "paths": operations, "components": components}


def chain(length: int) -> Json:
    schemas: dict[str, Any] = {
        f"S{n}": {"allOf": [{"$ref": f"#/components/schemas/S{n + 1}"}] * 20} for n in range(length)
    }
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/S0"}}}}
    paths = {f"/p{n}": {"post": {"requestBody": body, "responses": {"200": body}}} for n in range(50)}
    return {"openapi": "3.0.0", "paths": paths, "components": {"schemas": schemas}}


@pytest.mark.parametrize(("make", "count"), [(references, 100), (chain, 200)], ids=["references", "chain"])
@pytest.mark.attack("held-40")
def test_many_references_load_quickly(make: Callable[[int], Json], count: int) -> None:
    data = json.dumps(make(count)).encode()
    begun = time.process_time()
    made = load_document(data, source="doc")
    assert time.process_time() - begun < 10
    assert made.skipped == ()
    assert real_documents.flaws(ApiDocument("", "", "3.0", (), made.operations[:3])) == []


def test_too_many_operations_are_rejected() -> None:
    with pytest.raises(InvalidDocument, match="10,000"):
        document({f"/p{n}": {"get": {}, "post": {}} for n in range(5001)})
