"""Whatever a value contains, it stays in its place: path prefix, segments, host, query names and the set of headers."""

from __future__ import annotations

import itertools
import os
import re
from typing import Any
from urllib.parse import parse_qsl, unquote, urljoin, urlsplit

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.parts.openapi.generated_documents import document, operation, parameter
from toolway.parts.openapi.document.models import Operation, UnencodableArguments
from toolway.parts.openapi.document.request_encoder import EncodedRequest, encode_operation
from toolway.types import Json

EXAMPLES = int(os.environ.get("TOOLWAY_EXAMPLES", "80"))
BASE = "/api/v1"
NASTY = [
    *(
        "../",
        "..",
        ".",
        "../../admin",
        "..\\..\\x",
        "%2e%2e",
        "%2e%2e%2f",
        "%2E",
        "..%2f",
        "..;/",
        "..;",
        ".;x",
        "a/../b",
    ),
    *(
        ";",
        "?",
        "#",
        "@",
        "//",
        "/",
        "\\",
        "//evil.example/x",
        "@evil.example",
        "a@b:c",
        "http://evil.example/",
        "&",
        "=",
    ),
    *(
        "a=b&admin=true",
        "\r\nX-Evil: 1",
        "\r",
        "\n",
        "\0",
        "a\0b",
        "\t",
        " ",
        "  x  ",
        "%",
        "%zz",
        "%00",
        "%0d%0a",
        "+",
    ),
    *(
        "é",
        "日本語",
        "\u2028",
        "\u202e",
        "．．／",
        "\x7f",
        "\x80",
        "\ufeff",
        "😀",
        "\ud800",
        ",",
        "|",
        "[]",
        "{}",
        '"',
        "'",
    ),
    *("; Path=/", "a; evil=1", "--", "", "null", "..\r\n", ".. ", "%252e%252e%252f", "x" * 300),
]
STYLES = {
    "path": ["simple", "label", "matrix"],
    "query": ["form", "spaceDelimited", "pipeDelimited", "deepObject"],
    "header": ["simple"],
    "cookie": ["form"],
}
PLAIN = re.compile(r"[!-~]+")
HEADER = re.compile(r"[ -~]*")


def check(made: EncodedRequest, of: Operation, spread: set[str]) -> None:
    """The request is the template's, filled in. `spread` are fields of objects that a query may name."""
    assert PLAIN.fullmatch(made.target) and "#" not in made.target
    path, _, query = made.target.partition("?")
    assert path.startswith(BASE + "/")
    segments, template = path.removeprefix(BASE).split("/"), of.path.split("/")
    assert len(segments) == len(template)
    for got, wanted in zip(segments, template, strict=True):
        before, after = wanted.partition("{")[0], wanted.rpartition("}")[2] if "{" in wanted else ""
        assert got.startswith(before) and got.endswith(after)
        assert got == wanted or ("{" in wanted and (got or of.method == "GET"))
    # As clients, proxies and servers read it, those too that decode before they look.
    prefix = BASE + of.path.partition("{")[0]
    decoded = unquote(path, errors="replace").replace("\\", "/").replace("?", "").replace("#", "")
    for seen, begin in ((path, prefix), (decoded, unquote(prefix))):
        url = urlsplit(urljoin("http://api.example:8080/", "http://api.example:8080" + seen))
        assert url.netloc == "api.example:8080"
        assert url.path.startswith(begin)
    names = {each.name for each in of.parameters if each.location == "query"}
    for name, _ in parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), errors="replace"):
        assert name in names or name in spread or any(name.startswith(f"{each}[") for each in names)
    headers = [name for name, _ in made.headers]
    assert len(headers) == len({name.lower() for name in headers})
    assert HEADER.fullmatch(made.content_type) and (made.body is not None) == bool(made.content_type)
    assert set(headers) <= {each.name for each in of.parameters if each.location == "header"} | {"Cookie"}
    for name, value in made.headers:
        assert HEADER.fullmatch(value)
        if name == "Cookie":
            cookies = {each.partition("=")[0] for each in value.split("; ")}
            assert cookies <= {each.name for each in of.parameters if each.location == "cookie"}


@pytest.mark.parametrize("place", list(STYLES))
def test_nasty_text_stays_in_its_place(place: str) -> None:
    tried = sent = 0
    for style, explode in itertools.product(STYLES[place], (True, False)):
        path = "/things/{it}/of/v{it}.json" if place == "path" else "/things/of"
        of = operation({"parameters": [parameter("it", place, style=style, explode=explode)]}, path=path)
        for text in NASTY:
            for value in (text, [text, "b"], [text], {text: "1"}, {"k": text}, {"k": {"n": text}}, [[text]]):
                tried += 1
                try:
                    made = encode_operation(of, {"it": value}, BASE)
                except UnencodableArguments:
                    continue
                sent += 1
                check(made, of, {text, "k"})
    assert sent > tried / 3  # most of it is harmless, and goes through


@pytest.mark.parametrize("place", ["path", "query"])
def test_sent_value_decodes_to_the_original(place: str) -> None:
    path = "/things/{it}" if place == "path" else "/things"
    of = operation({"parameters": [parameter("it", place)]}, path=path)
    told = 0
    for text in NASTY:
        try:
            target = encode_operation(of, {"it": text}, BASE).target
        except UnencodableArguments:
            continue
        told += 1
        encoded = target.removeprefix(f"{BASE}/things").lstrip("/") if place == "path" else target.partition("it=")[2]
        assert unquote(encoded, errors="strict") == text
    assert told > 40


@pytest.mark.parametrize("text", ["..", ".", "../x", "a/../b", "..\\x", "..;/x", ".;", "..;a=b", "a/..", "./a", "..\0"])
@pytest.mark.attack("held-42")
def test_dot_segments_in_path_values_are_rejected(text: str) -> None:
    of = operation({"parameters": [parameter("it", "path")]}, path="/things/{it}")
    with pytest.raises(UnencodableArguments, match=r"\.\."):
        encode_operation(of, {"it": text}, BASE)


@pytest.mark.parametrize("text", ["...", "a..b", "..a", ".hidden", "v1.2", "a/b", "%2e%2e", "heads/main"])
def test_harmless_dots_are_sent(text: str) -> None:
    of = operation({"parameters": [parameter("it", "path")]}, path="/things/{it}")
    assert unquote(encode_operation(of, {"it": text}, BASE).target) == f"{BASE}/things/{text}"


@pytest.mark.parametrize("value", ["", [], {}, [""], None])
@pytest.mark.parametrize("style", ["simple", "matrix", "label"])
def test_empty_path_value_does_not_address_the_collection(style: str, value: Any) -> None:
    of = operation({"parameters": [parameter("it", "path", style=style)]}, path="/things/{it}", method="delete")
    try:
        target = encode_operation(of, {"it": value}, BASE).target
    except UnencodableArguments:
        return
    assert style == "matrix" and target == f"{BASE}/things/;it"


def test_last_path_value_of_a_read_may_be_empty() -> None:
    of = operation({}, path="/{repo}/contents/{path}")
    assert encode_operation(of, {"repo": "r", "path": ""}).target == "/r/contents/"
    with pytest.raises(UnencodableArguments, match="repo"):
        encode_operation(of, {"repo": "", "path": "x"})


def test_joined_path_values_cannot_form_dot_segments() -> None:
    of = operation({}, path="/things/{a}{b}/x")
    assert encode_operation(of, {"a": "..", "b": "x"}, BASE).target == f"{BASE}/things/..x/x"
    with pytest.raises(UnencodableArguments):
        encode_operation(of, {"a": ".", "b": "."}, BASE)


@pytest.mark.parametrize("text", ["a\r\nX: 1", "a\nb", "a\rb", "a\0b", "\x1b[0m", "a\x7f"])
@pytest.mark.attack("held-42")
def test_control_characters_in_header_are_rejected(text: str) -> None:
    of = operation({"parameters": [parameter("X-It", "header")]})
    with pytest.raises(UnencodableArguments, match="header"):
        encode_operation(of, {"X-It": text})


def test_non_ascii_header_value_is_percent_encoded() -> None:
    of = operation({"parameters": [parameter("X-It", "header")]})
    assert encode_operation(of, {"X-It": "é, ok=1; x"}).headers == (("X-It", "%C3%A9, ok=1; x"),)


@pytest.mark.parametrize(
    "name", ["Host", "content-length", "Transfer-Encoding", "Authorization", "Cookie", "a b", "x\r\ny", ""]
)
@pytest.mark.attack("held-42")
def test_document_cannot_define_reserved_headers(name: str) -> None:
    of = operation({"parameters": [parameter(name, "header", required=True)]})
    assert of.parameters == () and of.tool["inputSchema"]["properties"] == {}


def test_object_fields_cannot_pose_as_other_parameters() -> None:
    security = {"securitySchemes": {"k": {"type": "apiKey", "in": "query", "name": "api_key"}}}
    raw = {"parameters": [parameter("filter", "query", explode=True), parameter("limit", "query")]}
    of = operation(raw, components=security)
    assert encode_operation(of, {"filter": {"color": "red"}}).target == "/things?color=red"
    for name in ("limit", "api_key", "filter"):
        with pytest.raises(UnencodableArguments, match=name):
            encode_operation(of, {"filter": {name: "1"}})


@pytest.mark.attack("held-42")
def test_object_value_is_one_cookie() -> None:
    of = operation({"parameters": [parameter("it", "cookie")]})
    cookie = "it=session,evil,a%3Bb,c%3Dd"
    assert encode_operation(of, {"it": {"session": "evil", "a;b": "c=d"}}).headers == (("Cookie", cookie),)


# -- random documents and values --------------------------------------------------------------------------------------

texts = st.one_of(
    st.sampled_from(NASTY),
    st.text(max_size=20),
    st.text(alphabet="./\\%;?#@&=:,+ \r\n\0e2f", max_size=12),
    st.lists(st.sampled_from(NASTY[:-1]), min_size=2, max_size=3).map("".join),
)
scalars = st.one_of(texts, st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False, allow_infinity=False))
keys = st.one_of(st.sampled_from(["k", "a", "color"]), texts)
values = st.one_of(scalars, st.lists(scalars, max_size=3), st.dictionaries(keys, scalars, max_size=3))
deep = st.one_of(values, st.lists(values, max_size=2), st.dictionaries(keys, values, max_size=2))
names = st.from_regex(r"[a-z]{1,6}", fullmatch=True)
raw_names = st.one_of(
    names, st.sampled_from(["X-It", "filter[a]", "$top", "a b", "é", "x&y", "a=b", "#"]), st.text(max_size=6)
)
words = st.sampled_from(["users", "v2", "a.b", "x-y", "things", "it:do", "é", "a b", "(x)"])


media = st.one_of(
    st.sampled_from(
        ["application/json", "multipart/form-data", "application/x-www-form-urlencoded", "text/plain", "image/*"]
    ),
    st.sampled_from(["text/html\r\nX-Evil: 1", "a/b; c=é", "a/\0", "*/*", "", "x", "multipart/mixed; boundary=x"]),
    st.text(max_size=8),
)


@st.composite
def operations(draw: st.DrawFn) -> Operation:
    """An operation of a random document."""
    inside = draw(st.lists(names, max_size=3, unique=True))
    segments = draw(st.lists(words, min_size=1, max_size=3)) + [
        draw(st.sampled_from(["{%s}", "{%s}", "v{%s}", "{%s}.json", "{%s}:do"])) % name for name in inside
    ]
    path = "/" + "/".join(segments[:1] + draw(st.permutations(segments[1:])))
    raws: list[Json] = []
    for place, listed in {
        "path": inside,
        **{p: draw(st.lists(raw_names, max_size=3)) for p in ("query", "header", "cookie")},
    }.items():
        for name in listed:
            extra: Json = {"style": draw(st.sampled_from(STYLES[place])), "explode": draw(st.booleans())}
            extra["allowReserved"] = draw(st.booleans())
            if draw(st.integers(0, 9)) == 0:
                extra["content"] = {"application/json": {}}
            raws.append(parameter(name, place, **extra))
    content = {
        name: {"schema": {}, "encoding": {"k": {"contentType": draw(media)}}}
        for name in draw(st.lists(media, max_size=2))
    }
    raw = {"parameters": raws, **({"requestBody": {"content": content}} if content else {})}
    made = document({path: {draw(st.sampled_from(["get", "delete"])): raw}})
    assume(made.operations)
    return made.operations[0]


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_values_stay_in_their_place(data: st.DataObject) -> None:
    of = data.draw(operations())
    arguments: Json = {}
    spread: set[str] = set()
    for each in of.parameters:
        if each.location == "path" or data.draw(st.booleans()):
            value = data.draw(deep)
            arguments[each.argument] = value
            spread |= set(value) if isinstance(value, dict) else set()
    if of.body is not None:
        arguments[of.body.argument] = data.draw(deep)
    try:
        made = encode_operation(of, arguments, BASE)
    except UnencodableArguments:
        return
    check_random(made, of, {text.encode("utf-8", "replace").decode() for text in spread})


def check_random(made: EncodedRequest, of: Operation, spread: set[str]) -> None:
    """The same for templates whose literal parts had to be encoded."""
    from urllib.parse import quote

    safe = "/:@!$&'()*+,;=%~{}"
    check(made, Operation(**{**{n: getattr(of, n) for n in of.__slots__}, "path": quote(of.path, safe=safe)}), spread)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(operations(), st.from_regex(r"[A-Za-z0-9._~ é/-]{1,12}", fullmatch=True))
def test_harmless_value_is_never_rejected(of: Operation, text: str) -> None:
    assume("." not in text and all(part.strip() for part in text.split("/")))  # a label begins with its own dot
    made = encode_operation(of, {each.argument: text for each in of.parameters}, BASE)
    check_random(made, of, set())
