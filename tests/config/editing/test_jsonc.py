import pytest

from toolway.config.editing import jsonc
from toolway.errors import ConfigError


def test_comments_and_trailing_commas_are_ignored():
    text = """
    // a line
    {
      "a": [1, 2, /* three */ ], // after
      /* over
         lines */
      "b": {"c": "d",}, // last
    }
    """
    assert jsonc.parse_jsonc(text).value == {"a": [1, 2], "b": {"c": "d"}}


def test_comment_like_text_in_strings_is_kept():
    text = r'{"url": "https://x/y", "glob": "a/*b*/", "quote": "\"//\"", "comma": ",}"}'
    assert jsonc.parse_jsonc(text).value == {"url": "https://x/y", "glob": "a/*b*/", "quote": '"//"', "comma": ",}"}


def test_keys_have_their_line_despite_comments():
    document = jsonc.parse_jsonc('{ /* one\ntwo */\n"a": {\n "b": {"e": 1}, // {"x": 2}\n "c": [{"d": 1}]\n}}')
    assert document.lines == {("a",): 3, ("a", "b"): 4, ("a", "c"): 5}
    assert document.duplicates == {}


def test_duplicate_key_is_reported_with_both_lines():
    document = jsonc.parse_jsonc('{"a": {"x": 1,\n"x": 2},\n"b": [{"y": 1}, {"y": 2}]}')
    assert document.duplicates == {("a", "x"): jsonc.DuplicateKey(("a", "x"), 1, 2)}


def test_first_deep_duplicate_key_is_reported():
    document = jsonc.parse_jsonc(
        '{"a": {"b": {"c": {"d": 1,\n"d": 2,\n"e": 1, "e": 2}}, "g": {"d": 1}},\n"h": {"i": {"d": 1}}}'
    )
    assert document.duplicates == {("a", "b"): jsonc.DuplicateKey(("a", "b", "c", "d"), 1, 2)}


def test_keys_after_nested_arrays_have_the_right_path():
    document = jsonc.parse_jsonc('{"a": [[{"q": [1]}], {"r": {}}], "b": {"c": 1}}')
    assert list(document.lines) == [("a",), ("b",), ("b", "c")]


def test_syntax_error_has_file_and_line():
    with pytest.raises(ConfigError) as caught:
        jsonc.parse_jsonc('{\n  // fine\n  "a": 1\n  "b": 2\n}', "mcp.json")
    assert (caught.value.file, caught.value.line, caught.value.code) == ("mcp.json", 4, "E-CONFIG-SYNTAX")
    assert "line 4, column 3" in caught.value.detail
    assert caught.value.hint


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"a": NaN}', '{"a": 1,,}', "{,}", "[,]", '{"a":,}', "[" * 100_000, '{"a": /* open', '{"a": "x\ny"}'],
)
def test_invalid_json_is_rejected(text):
    with pytest.raises(ConfigError) as caught:
        jsonc.parse_jsonc(text, "f")
    assert caught.value.code == "E-CONFIG-SYNTAX"


@pytest.mark.parametrize("text", ['{\n"a": "http://x,\n}', '{"b": 1,\n/* "a": 1, // }\n}', '{"b": 1}\n/* open'])
def test_unclosed_text_is_reported_where_it_begins(text):
    with pytest.raises(ConfigError) as caught:
        jsonc.parse_jsonc(text, "f")
    assert caught.value.line == 2


def test_byte_order_mark_is_accepted():
    assert jsonc.parse_jsonc('\ufeff{"a": 1}').value == {"a": 1}
