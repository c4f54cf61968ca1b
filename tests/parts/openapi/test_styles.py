"""Values as the tables of OpenAPI and RFC 6570 write them, and the forms of Swagger 2.0."""

from __future__ import annotations

from typing import Any

import pytest

from tests.parts.openapi.generated_documents import operation, parameter
from toolway.parts.openapi.document.models import UnencodableArguments
from toolway.parts.openapi.document.request_encoder import encode_operation

LIST = ["blue", "black", "brown"]
MAP = {"R": 100, "G": 200, "B": 150}


@pytest.mark.parametrize(
    ("style", "explode", "value", "written"),
    [
        ("simple", False, "blue", "blue"),
        ("simple", False, LIST, "blue,black,brown"),
        ("simple", False, MAP, "R,100,G,200,B,150"),
        ("simple", True, MAP, "R=100,G=200,B=150"),
        ("label", False, "blue", ".blue"),
        ("label", False, LIST, ".blue,black,brown"),
        ("label", True, LIST, ".blue.black.brown"),
        ("label", True, MAP, ".R=100.G=200.B=150"),
        ("matrix", False, "blue", ";color=blue"),
        ("matrix", False, LIST, ";color=blue,black,brown"),
        ("matrix", True, LIST, ";color=blue;color=black;color=brown"),
        ("matrix", False, MAP, ";color=R,100,G,200,B,150"),
        ("matrix", True, MAP, ";R=100;G=200;B=150"),
    ],
)
def test_path_styles(style: str, explode: bool, value: Any, written: str) -> None:
    of = operation({"parameters": [parameter("color", "path", style=style, explode=explode)]}, path="/c/{color}")
    assert encode_operation(of, {"color": value}).target == f"/c/{written}"


@pytest.mark.parametrize(
    ("style", "explode", "value", "written"),
    [
        ("form", True, "blue", "color=blue"),
        ("form", False, "", "color="),
        ("form", False, LIST, "color=blue,black,brown"),
        ("form", True, LIST, "color=blue&color=black&color=brown"),
        ("form", False, MAP, "color=R,100,G,200,B,150"),
        ("form", True, MAP, "R=100&G=200&B=150"),
        ("spaceDelimited", False, LIST, "color=blue%20black%20brown"),
        ("pipeDelimited", False, LIST, "color=blue%7Cblack%7Cbrown"),
        ("deepObject", True, MAP, "color%5BR%5D=100&color%5BG%5D=200&color%5BB%5D=150"),
        ("deepObject", True, {"a": {"b": [1, 2]}}, "color%5Ba%5D%5Bb%5D=1&color%5Ba%5D%5Bb%5D=2"),
        ("form", True, True, "color=true"),
        ("form", True, 1.5, "color=1.5"),
        ("form", True, 10**25, f"color={10**25}"),
        ("form", True, ["a,b", "c&d"], "color=a%2Cb&color=c%26d"),
        ("form", False, ["a,b", "c&d"], "color=a%2Cb,c%26d"),
        ("form", True, [{"a": 1}], "color=%7B%22a%22%3A1%7D"),
    ],
)
def test_query_styles(style: str, explode: bool, value: Any, written: str) -> None:
    of = operation({"parameters": [parameter("color", "query", style=style, explode=explode)]})
    assert encode_operation(of, {"color": value}).target == f"/things?{written}"


@pytest.mark.parametrize(
    ("value", "explode", "written"), [(LIST, False, "blue,black,brown"), (MAP, True, "R=100,G=200,B=150")]
)
def test_header_styles(value: Any, explode: bool, written: str) -> None:
    of = operation({"parameters": [parameter("X-Color", "header", explode=explode)]})
    assert encode_operation(of, {"X-Color": value}).headers == (("X-Color", written),)


def test_cookie_style() -> None:
    of = operation({"parameters": [parameter("a", "cookie"), parameter("b", "cookie")]})
    assert encode_operation(of, {"a": "x y", "b": 2}).headers == (("Cookie", "a=x%20y; b=2"),)


@pytest.mark.parametrize(
    ("collection", "written"),
    [
        ("csv", "a=1,2"),
        ("ssv", "a=1%202"),
        ("tsv", "a=1%092"),
        ("pipes", "a=1%7C2"),
        ("multi", "a=1&a=2"),
        (None, "a=1,2"),
    ],
)
def test_swagger_collection_formats(collection: str | None, written: str) -> None:
    raw = {"name": "a", "in": "query", "type": "array", "items": {"type": "integer"}}
    if collection is not None:
        raw["collectionFormat"] = collection
    of = operation({"parameters": [raw]}, version="2.0")
    assert encode_operation(of, {"a": [1, 2]}).target == f"/things?{written}"


def test_allow_reserved_keeps_only_safe_characters() -> None:
    of = operation({"parameters": [parameter("q", "query", allowReserved=True)]})
    assert encode_operation(of, {"q": "a/b:c?d@e,f&g#h;i+j%20"}).target == "/things?q=a/b:c?d@e,f%26g%23h%3Bi%2Bj%2520"


def test_parameter_with_content_type_is_encoded_in_it() -> None:
    raw = {"name": "q", "in": "query", "content": {"application/json": {"schema": {"type": "object"}}}}
    of = operation({"parameters": [raw]})
    assert encode_operation(of, {"q": {"a": ["x"]}}).target == "/things?q=%7B%22a%22%3A%5B%22x%22%5D%7D"


def test_template_keeps_its_query_and_drops_fragment() -> None:
    of = operation({"parameters": [parameter("q", "query")]}, path="/x y/{id}?action=go#Nothing")
    assert encode_operation(of, {"id": "1", "q": "z"}, "/base/").target == "/base/x%20y/1?action=go&q=z"


def test_null_counts_as_absent() -> None:
    of = operation({"parameters": [parameter("q", "query"), parameter("id", "path")]}, path="/things/{id}")
    assert encode_operation(of, {"q": None, "id": 0}).target == "/things/0"
    with pytest.raises(UnencodableArguments, match="missing: id"):
        encode_operation(of, {"id": None})


def test_unknown_argument_error_lists_known_arguments() -> None:
    of = operation({"parameters": [parameter("limit", "query"), parameter("q", "query")]})
    with pytest.raises(UnencodableArguments, match=r"unknown: limt; known: limit, q"):
        encode_operation(of, {"limt": 1})
