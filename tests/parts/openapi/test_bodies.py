"""Bodies: each media type as a server reads it."""

from __future__ import annotations

import base64
import email
import email.policy
import json
from typing import Any
from urllib.parse import parse_qsl

import pytest

from tests.parts.openapi.generated_documents import body_of, operation
from toolway.parts.openapi.document.models import UnencodableArguments
from toolway.parts.openapi.document.request_encoder import EncodedRequest, encode_operation
from toolway.types import Json

FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
ANY = {"type": "object"}


def parts(made: EncodedRequest) -> list[tuple[str, str | None, str, bytes]]:
    """Name, file name, media type and bytes of each part, by a parser that is not ours."""
    whole = email.message_from_bytes(
        b"Content-Type: " + made.content_type.encode() + b"\r\n\r\n" + (made.body or b""), policy=email.policy.HTTP
    )
    assert whole.is_multipart() and not whole.defects
    found = []
    for part in whole.iter_parts():
        name, data = part.get_param("name", header="content-disposition"), part.get_payload(decode=True)
        assert isinstance(name, str) and isinstance(data, bytes)
        found.append((name, part.get_filename(), part.get_content_type(), data))
    return found


@pytest.mark.parametrize(
    "media", ["application/json", "application/vnd.api+json", "application/json; charset=utf-8", "*/*"]
)
@pytest.mark.parametrize("value", [{"a": "é"}, [1, None], "text", 3, None])
def test_json_body_is_encoded(media: str, value: Any) -> None:
    made = encode_operation(body_of({}, media=media), {"body": value})
    assert json.loads(made.body or b"") == value
    assert made.content_type == ("application/json" if "*" in media else media)


def test_form_body_is_encoded_field_by_field() -> None:
    value = {"a": "x&y=z", "list": ["1", "2"], "object": {"k": "v"}, "yes": True, "none": None, "é": "ü"}
    made = encode_operation(body_of(ANY, media=FORM), {"body": value})
    assert made.content_type == FORM
    assert parse_qsl((made.body or b"").decode(), strict_parsing=True) == [
        *(("a", "x&y=z"), ("list", "1"), ("list", "2"), ("object", '{"k":"v"}'), ("yes", "true"), ("é", "ü")),
    ]


def test_form_fields_use_styles_of_the_document() -> None:
    encoding = {
        "deep": {"style": "deepObject"},
        "csv": {"style": "form", "explode": False},
        "piped": {"style": "pipeDelimited"},
    }
    of = body_of(ANY, media=FORM, entry={"encoding": encoding})
    made = encode_operation(of, {"body": {"deep": {"a": {"b": "1"}}, "csv": ["1", "2"], "piped": ["x", "y"]}})
    assert parse_qsl((made.body or b"").decode()) == [("deep[a][b]", "1"), ("csv", "1,2"), ("piped", "x|y")]


def test_multipart_file_is_text_or_base64() -> None:
    binary = {"type": "string", "format": "binary"}
    schema = {
        "type": "object",
        "properties": {"one": binary, "two": {"type": "array", "items": binary}, "note": {"type": "string"}},
    }
    of = body_of(schema, media=MULTIPART)
    raw = bytes(range(256))
    picture = {"base64": base64.b64encode(raw).decode(), "filename": "a.png", "contentType": "image/png"}
    made = encode_operation(of, {"body": {"one": picture, "two": ["plain é", picture], "note": "n"}})
    assert parts(made) == [
        ("one", "a.png", "image/png", raw),
        ("two", "two", "application/octet-stream", "plain é".encode()),
        ("two", "a.png", "image/png", raw),
        ("note", None, "text/plain", b"n"),
    ]


def test_multipart_objects_are_json_unless_specified() -> None:
    of = body_of(
        ANY,
        media=MULTIPART,
        entry={"encoding": {"tags": {"contentType": "application/json"}, "x": {"contentType": "text/x"}}},
    )
    made = encode_operation(of, {"body": {"meta": {"a": 1}, "list": [1, 2], "tags": [1, 2], "x": "y"}})
    assert parts(made) == [
        ("meta", None, "application/json", b'{"a":1}'),
        ("list", None, "text/plain", b"1"),
        ("list", None, "text/plain", b"2"),
        ("tags", None, "application/json", b"[1,2]"),
        ("x", None, "text/x", b"y"),
    ]


@pytest.mark.parametrize("name", ['a"; filename="x', "a\r\nContent-Type: text/html\r\n\r\n<b>", "a\0b"])
def test_part_name_cannot_inject_headers(name: str) -> None:
    made = encode_operation(body_of(ANY, media=MULTIPART), {"body": {name: "value", "b": "c"}})
    assert [(file, kind, data) for _, file, kind, data in parts(made)] == [
        (None, "text/plain", b"value"),
        (None, "text/plain", b"c"),
    ]


def test_part_value_cannot_end_its_part() -> None:
    first = encode_operation(body_of(ANY, media=MULTIPART), {"body": {"a": "x"}})
    mark = first.content_type.partition("boundary=")[2]
    value = f"x\r\n--{mark}\r\nContent-Disposition: form-data; name=evil\r\n\r\n1\r\n--{mark}--"
    made = encode_operation(body_of(ANY, media=MULTIPART), {"body": {"a": value}})
    assert [(name, data) for name, _, _, data in parts(made)] == [("a", value.encode())]


def test_encoding_is_deterministic() -> None:
    of = body_of(ANY, media=MULTIPART)
    assert encode_operation(of, {"body": {"a": "x"}}) == encode_operation(of, {"body": {"a": "x"}})


def test_text_and_bytes_are_sent_as_is() -> None:
    assert encode_operation(body_of({}, media="text/plain"), {"body": "é"}).body == "é".encode()
    assert encode_operation(body_of({}, media="text/plain"), {"body": "é"}).content_type == "text/plain; charset=utf-8"
    assert encode_operation(body_of({}, media="application/xml"), {"body": "<a/>"}) == EncodedRequest(
        "/things", (), b"<a/>", "application/xml"
    )
    picture = {"base64": base64.b64encode(b"\x89PNG").decode(), "contentType": "image/png"}
    assert encode_operation(body_of({}, media="image/*"), {"body": picture}) == EncodedRequest(
        "/things", (), b"\x89PNG", "image/png"
    )
    assert encode_operation(body_of({}, media="application/pdf"), {"body": "%PDF"}).content_type == "application/pdf"


@pytest.mark.parametrize(
    "value", [{"base64": "!"}, {"base64": 3}, {"x": 1}, {"base64": "", "contentType": "a\r\nb: c"}]
)
def test_invalid_file_value_is_rejected(value: Json) -> None:
    with pytest.raises(UnencodableArguments):
        encode_operation(body_of({}, media="image/png"), {"body": value})


@pytest.mark.parametrize("media", [FORM, MULTIPART])
def test_form_body_must_be_an_object(media: str) -> None:
    with pytest.raises(UnencodableArguments, match="object"):
        encode_operation(body_of(ANY, media=media), {"body": ["a"]})


@pytest.mark.parametrize("media", ["application/json", FORM, MULTIPART, "text/plain"])
def test_lone_surrogate_is_rejected(media: str) -> None:
    with pytest.raises(UnencodableArguments, match="half a character"):
        encode_operation(body_of({}, media=media), {"body": "\ud800" if media == "text/plain" else {"a": "\ud800"}})


def test_caller_can_choose_media_type_and_json_is_default() -> None:
    content = {FORM: {"schema": ANY}, "application/json": {"schema": ANY}, "application/xml": {"schema": ANY}}
    of = operation({"requestBody": {"content": content}}, method="post")
    assert of.tool["inputSchema"]["properties"]["contentType"]["enum"] == ["application/json", FORM]
    assert encode_operation(of, {"body": {"a": 1}}).content_type == "application/json"
    assert encode_operation(of, {"body": {"a": 1}, "contentType": FORM}).body == b"a=1"
    assert encode_operation(of, {}).body is None
    with pytest.raises(UnencodableArguments, match="contentType"):
        encode_operation(of, {"body": {}, "contentType": "text/html"})


def test_swagger_form_data_becomes_a_form() -> None:
    fields = [
        {"name": "file", "in": "formData", "type": "file", "required": True},
        {"name": "ids", "in": "formData", "type": "array", "items": {"type": "string"}, "collectionFormat": "pipes"},
    ]
    of = operation({"parameters": fields, "consumes": [MULTIPART]}, method="post", version="2.0")
    assert of.tool["inputSchema"]["properties"]["body"]["required"] == ["file"]
    made = encode_operation(of, {"body": {"file": "x", "ids": ["1", "2"]}})
    assert parts(made) == [("file", "file", "application/octet-stream", b"x"), ("ids", None, "text/plain", b"1|2")]
    plain = operation({"parameters": fields[1:]}, method="post", version="2.0")
    assert encode_operation(plain, {"body": {"ids": ["1", "2"]}}) == EncodedRequest("/things", (), b"ids=1%7C2", FORM)
