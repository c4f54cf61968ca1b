"""Documents as they come: JSON and YAML, and those that are made to hurt."""

from __future__ import annotations

import json
import time
import tracemalloc
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped] # to compare with

from tests.timing import within
from toolway.parts.openapi.document import parser, yaml_parser
from toolway.parts.openapi.document.loader import load_document
from toolway.parts.openapi.document.models import InvalidDocument

HEAD = "openapi: 3.1.0\ninfo: {title: T, version: '1'}\n"
MOST_SECONDS = 5.0  # processor time; what is refused is refused long before
MOST_BYTES = 300 << 20


def read(text: str) -> Any:
    return parser.parse_document(text.encode(), "doc")[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("yes", "yes"), ("no", "no"), ("on", "on"), ("true", True), ("False", False), ("~", None), ("", None)),
        *(
            ("012", 12),
            ("0x1F", 31),
            ("0o17", 15),
            ("1_000", "1_000"),
            ("1:30", "1:30"),
            ("-1.5e3", -1500.0),
            (".5", 0.5),
        ),
        *(("2020-01-01", "2020-01-01"), (".inf", ".inf"), ("1e999", "1e999"), ("'1'", "1"), ('"null"', "null")),
        *(("!!str 1", "1"), ("!!int 1", 1), ("!thing x", "x"), ("9" * 60, "9" * 60), ("1.2.3", "1.2.3"), ("-", ["x"])),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: Any) -> None:
    if text == "-":
        assert read("a:\n- x") == {"a": ["x"]}
    else:
        assert read(f"a: {text}") == {"a": value}


def test_keys_are_strings() -> None:
    assert read("responses:\n  200: ok\n  true: x\n  null: y\n  1.0: z") == {
        "responses": {"200": "ok", "true": "x", "null": "y", "1.0": "z"}
    }


def test_anchors_aliases_and_merges() -> None:
    base = {"x": 1, "y": 2}
    assert read("base: &b {x: 1, y: 2}\nall: [*b, *b]") == {"base": base, "all": [base, base]}
    assert read("b: &b {x: 1, y: 2}\nmore:\n  <<: *b\n  y: 3")["more"] == {"x": 1, "y": 3}
    assert read("b: &b {x: 1, y: 2}\nboth: {<<: [{x: 9}, *b], z: 1}")["both"] == {"x": 9, "y": 2, "z": 1}
    assert read("&k key: v\nother: *k") == {"key": "v", "other": "key"}
    assert read("'<<': {a: 1}") == {"<<": {"a": 1}}


def test_large_document_matches_another_parser() -> None:
    value = {
        f"k{n}": {"list": [n, str(n), None, True, n / 7], "text": f"line\n{n}: '\"#x\n", "é": {}} for n in range(200)
    }
    assert read(yaml.safe_dump(value, allow_unicode=True)) == value
    assert read(json.dumps(value)) == value


def test_duplicate_key_is_reported_and_last_one_used() -> None:
    assert parser.parse_document(b"a: 1\nb: 2\na: 3\n", "doc") == (
        {"a": 3, "b": 2},
        ["duplicate key 'a' in line 3: the last one is used"],
    )
    tree, odd = parser.parse_document(b'{"a": 1, "a": 2}', "doc")
    assert tree == {"a": 2} and "a" in odd[0]


def test_flow_style_yaml_and_byte_order_mark_are_accepted() -> None:
    assert read("{a: 1, b: [x, y],} # no JSON") == {"a": 1, "b": ["x", "y"]}
    assert parser.parse_document(b"\xef\xbb\xbf" + b'{"a": 1}', "doc")[0] == {"a": 1}


@pytest.mark.parametrize("text", ["a: |-\n  \t\n  b", "a: |-\n  b\x9f", "a: |-\n  b\x7f\n", "a: |-\n  \x01b"])
def test_invalid_characters_are_removed_and_reported(text: str) -> None:
    tree, odd = parser.parse_document(text.encode(), "doc")
    assert tree["a"].strip() == "b" and "removed" in odd[0]


def test_old_yaml_line_separator_is_not_a_line_end() -> None:
    assert read("a: |\n  b\u2028c\n  d\nk: v") == {"a": "b c\nd\n", "k": "v"}


def test_parser_works_without_libyaml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_parser, "_LibyamlParser", None)
    assert read("a: [1, &x {b: no}, *x]") == {"a": [1, {"b": "no"}, {"b": "no"}]}


def doubling(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines)


def merging(levels: int) -> str:
    fields = ", ".join(f"k{n}: 1" for n in range(2000))
    return f"a: &a {{{fields}}}\n" + "\n".join(f"m{n}: {{<<: [{', '.join(['*a'] * 50)}]}}" for n in range(levels))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (doubling(12).encode(), "all aliases expanded"),
        (merging(200).encode(), "all aliases expanded"),
        (b"a: &a [*a]", "contains itself"),
        (b"a: &a {b: {c: *a}}", "contains itself"),
        (b"a: *b", "has no anchor"),
        (b"a: " + b"[" * 100_000, "nested deeper"),
        (b"[" * 1_000_000, "nested deeper"),
        (b"a:\n" + b"".join(b" " * n + b"- \n" for n in range(1, 3000)), "nested deeper"),
        (b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "invalid JSON"),
        (b'{"a": [' + b"[]," * 4_000_000 + b"[]]}", "more than 1,500,000 values"),
        (b"a:\n" + b"- x\n" * 1_600_000, "more than 1,500,000 values"),
        (b" " * (parser.MAX_DOCUMENT_BYTES + 1), "larger than 32 MiB"),
        (b"x" * (50 << 20), "larger than 32 MiB"),
        (b"{", "invalid JSON"),
        (b"a: 'unclosed", "invalid YAML in line"),
        (b"a: \xff", "not UTF-8"),
        (b"\xff\xfea\x00", "not UTF-8"),
        (b"a: \x00", "invalid YAML"),
        (b"? [a, b]\n: c", "key in line 1 is not a string"),
        (b"[1, 2]", "not an object"),
        (b"", "not an object"),
        (b"<html><body>Log in</body></html>", "not an object"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.attack("held-41")
def test_malicious_document_is_rejected_within_time_and_memory(data: bytes, why: str) -> None:
    tracing = len(data) < 1 << 20  # tracing makes the large ones too slow to tell anything
    if tracing:
        tracemalloc.start()
    begun = time.process_time()
    try:
        with pytest.raises(InvalidDocument) as caught:
            load_document(data, source="https://api.example/openapi")
        peak = tracemalloc.get_traced_memory()[1] if tracing else 0
    finally:
        tracemalloc.stop()
    assert why in caught.value.reason
    assert caught.value.reason.startswith("https://api.example/openapi")
    assert time.process_time() - begun < within(MOST_SECONDS) and peak < MOST_BYTES


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("swagger: '1.2'", "OpenAPI 1.2"),
        ("openapi: 4.0.0", "OpenAPI 4.0.0"),
        ("info: {}", "no `openapi` or `swagger` field"),
    ],
)
def test_unsupported_documents_are_named(text: str, why: str) -> None:
    with pytest.raises(InvalidDocument, match=why) as caught:
        load_document(text.encode(), source="doc")
    assert caught.value.hint


@pytest.mark.parametrize(("said", "dialect"), [("3.0.4", "3.0"), ("'3.1'", "3.1"), ("3.1", "3.1"), ("3.2.0", "3.1")])
def test_openapi_versions(said: str, dialect: str) -> None:
    assert load_document(f"openapi: {said}\npaths: {{}}".encode(), source="doc").dialect == dialect
    assert load_document(b"swagger: 2.0\npaths: {}", source="doc").dialect == "2.0"


@pytest.mark.parametrize(
    "broken", [None, 3, "x", [], {"x": 1}, True, [None], {"get": None}, {"get": {"parameters": 3}}]
)
@pytest.mark.parametrize(
    "place",
    [
        "paths",
        "info",
        "servers",
        "components",
        "security",
        "tags",
        "item",
        "operation",
        "parameters",
        "requestBody",
        "responses",
    ],
)
def test_malformed_document_does_not_crash(place: str, broken: Any) -> None:
    tree: dict[str, Any] = {"openapi": "3.0.0", "info": {}, "paths": {"/a": {"get": {}}}}
    if place == "item":
        tree["paths"]["/a"] = broken
    elif place == "operation":
        tree["paths"]["/a"]["get"] = broken
    elif place in ("parameters", "requestBody", "responses"):
        tree["paths"]["/a"]["get"][place] = broken
    else:
        tree[place] = broken
    for version in ("openapi", "swagger"):
        made = load_document(
            json.dumps({**tree, "openapi": "3.0.0"} if version == "openapi" else {**tree, "openapi": "2.0"}).encode(),
            source="doc",
        )
        assert all(each.reason for each in made.skipped)
