"""What a program reads of a tool result."""

from __future__ import annotations

import base64

import pytest

from toolway.types import Json, ResourceResult, ToolResult


def result(*texts: str, **fields: object) -> ToolResult:
    raw: Json = {"content": [{"type": "text", "text": text} for text in texts], **fields}
    return ToolResult("server", "tool", raw)


@pytest.mark.promise("B1")
@pytest.mark.parametrize(
    ("text", "value"), [('{"number": 42}', {"number": 42}), ("[1, null]", [1, None]), (' \n{"a": []}\n', {"a": []})]
)
def test_single_json_text_is_the_data(text, value) -> None:
    assert result(text).data == value


def test_structured_content_overrides_text_as_data() -> None:
    assert result('{"a": 1}', structuredContent={"b": 2}).data == {"b": 2}
    assert result('{"a": 1}', structuredContent={}).data == {}


@pytest.mark.parametrize(
    "blocks",
    [
        (),
        ("plain",),
        ("42",),
        ('"text"',),
        ("true",),
        ("null",),
        ("{broken",),
        ('{"a": 1, "a": 2}',),
        ('{"a": NaN}',),
        ("[" * 100_000,),
        ('{"a": 1} and more',),
        ('{"a": 1}', '{"b": 2}'),
        ("[" + " " * (8 * 1024 * 1024) + "]",),
    ],
)
def test_other_text_has_no_data(blocks) -> None:
    assert result(*blocks).data is None


@pytest.mark.parametrize(
    "content", [None, "text", [7], [{"type": "image", "text": "{}"}], [{"type": "text", "text": 7}]]
)
def test_content_of_wrong_type_has_no_data(content) -> None:
    assert ToolResult("server", "tool", {"content": content}).data is None


@pytest.mark.user_trial("25")
def test_text_includes_embedded_resources_and_links() -> None:
    content = [
        {"type": "text", "text": "Two files:"},
        {"type": "resource", "resource": {"uri": "file:///a.txt", "mimeType": "text/plain", "text": "the text of a"}},
        {"type": "resource_link", "uri": "file:///b.pdf", "name": "b.pdf"},
        {"type": "resource_link", "uri": "file:///c.pdf"},
    ]
    expected = "Two files:\nthe text of a\n[b.pdf](file:///b.pdf)\n[file:///c.pdf](file:///c.pdf)"
    assert ToolResult("server", "tool", {"content": content}).text == expected


@pytest.mark.user_trial("25")
@pytest.mark.parametrize(
    ("size", "shown"), [(0, "0 B"), (2, "2 B"), (999, "999 B"), (12_345, "12 kB"), (1_250_000, "1.2 MB")]
)
def test_text_names_type_and_size_of_binary_content(size: int, shown: str) -> None:
    data = base64.b64encode(b"x" * size).decode()
    content: list[Json] = [
        {"type": "image", "data": data, "mimeType": "image/png"},
        {"type": "audio", "data": data},
        {"type": "image", "data": 7},
        {"type": "resource", "resource": {"uri": "file:///d.bin", "blob": data}},
    ]
    found = ToolResult("server", "tool", {"content": content})
    assert found.text == f"[image/png, {shown}]\n[audio, {shown}]\n[binary, {shown}]"
    assert found.content == content and found.structured_content is None
    read = ResourceResult("server", "x:y", {"contents": [{"uri": "x:y", "mimeType": "application/pdf", "blob": data}]})
    assert read.text == f"[application/pdf, {shown}]"


@pytest.mark.user_trial("25")
@pytest.mark.parametrize("value", [{"a": 1}, [1], "text", 1.5, 7, True, None])
def test_structured_content_may_be_any_json_value(value) -> None:
    assert result("x", structuredContent=value).structured_content == value
