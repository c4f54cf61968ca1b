"""What a program reads of a tool result."""

from __future__ import annotations

import pytest

from toolway.types import Json, ToolResult


def result(*texts: str, **fields: object) -> ToolResult:
    raw: Json = {"content": [{"type": "text", "text": text} for text in texts], **fields}
    return ToolResult("server", "tool", raw)


@pytest.mark.promise("B1")
@pytest.mark.parametrize(
    ("text", "value"), [('{"number": 42}', {"number": 42}), ("[1, null]", [1, None]), (' \n{"a": []}\n', {"a": []})]
)
def test_a_single_json_text_is_the_data_of_a_result(text, value) -> None:
    assert result(text).data == value


def test_structured_content_is_the_data_before_any_text() -> None:
    assert result('{"a": 1}', structuredContent={"b": 2}).data == {"b": 2}
    assert result('{"a": 1}', structuredContent={}).data == {}


@pytest.mark.parametrize(
    "texts",
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
def test_anything_else_is_no_data(texts) -> None:
    assert result(*texts).data is None


@pytest.mark.parametrize(
    "content", [None, "text", [7], [{"type": "image", "text": "{}"}], [{"type": "text", "text": 7}]]
)
def test_content_of_the_wrong_kind_is_no_data(content) -> None:
    assert ToolResult("server", "tool", {"content": content}).data is None
