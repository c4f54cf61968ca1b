"""What is decided about an API without waiting: places, credentials, statuses, results, pages."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest

from toolway.config.schema import Server
from toolway.http.client import HttpTarget
from toolway.parts.openapi import bindings, responses, transport
from toolway.parts.openapi.bindings import NoBaseUrl, base_url_for
from toolway.parts.openapi.document.loader import load_document
from toolway.parts.openapi.document.models import (
    ApiDocument,
    ApiResponse,
    BaseUrl,
    Operation,
    Parameter,
    SecurityScheme,
)
from toolway.parts.openapi.settings import ApiCredential, OpenApi
from toolway.types import Certainty
from toolway.upstream.transport import TransportError

DOCUMENT = "https://docs.example/v1/openapi.json"
OPERATION = Operation("op", "GET", "/x")


def document(*urls: str) -> ApiDocument:
    return ApiDocument("t", "1", "3.1", tuple(BaseUrl(url) for url in urls), (OPERATION,))


# -- places -----------------------------------------------------------------------------------------------------------


def api(url: str | None = None, **more: Any) -> Server:
    openapi = OpenApi(
        **({"url": DOCUMENT} if "file" not in more else {"file": more.pop("file")}), **more.pop("api", {})
    )
    return Server(url=url, transport_settings=openapi, **more)


@pytest.mark.parametrize(
    ("urls", "expected"),
    [
        (["https://api.example/v2/"], "https://api.example/v2"),
        (["/v2"], "https://docs.example/v2"),
        (["../v2"], "https://docs.example/v2"),
        (["v2"], "https://docs.example/v1/v2"),
        ([], "https://docs.example"),
    ],
)
def test_document_server_url_is_the_base_url(urls: list[str], expected: str):
    place = base_url_for(OPERATION, document(*urls), api())
    assert f"{place.target.origin}{place.prefix}" == expected


def test_entry_url_overrides_document_servers():
    place = base_url_for(OPERATION, document("https://other.example"), api("https://mine.example/base/"))
    assert (str(place.target.origin), place.prefix) == ("https://mine.example", "/base")


@pytest.mark.parametrize(
    "more",
    [{"headers": {"X-Key": "k"}}, {"api": {"credentials": (ApiCredential("k", "bearer"),)}}],
    ids=["headers", "credentials"],
)
@pytest.mark.attack("held-43")
def test_credentials_never_go_to_origin_named_only_by_document(more: dict[str, Any]):
    with pytest.raises(NoBaseUrl, match="must not get the credentials") as caught:
        base_url_for(OPERATION, document("https://api.example/v2"), api(**more))
    assert caught.value.hint.endswith('"url": "https://api.example/v2"')
    assert base_url_for(OPERATION, document("/v2"), api(**more)).prefix == "/v2"
    assert base_url_for(OPERATION, document("https://api.example"), api(file="/x.yaml", **more))
    assert base_url_for(OPERATION, document("https://api.example"), api("https://api.example", **more))


@pytest.mark.parametrize("url", ["", "/v1", "ftp://x", "https://u:p@x", "https://x/a?b", "https://x/a b", "http://"])
def test_unusable_base_url_is_rejected_with_hint(url: str):
    with pytest.raises(NoBaseUrl) as caught:
        base_url_for(OPERATION, document(url), api(file="/x.yaml"))
    assert '"url": "https://…"' in caught.value.hint


# -- credentials ------------------------------------------------------------------------------------------------------

SCHEMES = {
    "key": SecurityScheme("key", "apiKey", "header", "X-Key"),
    "query": SecurityScheme("query", "apiKey", "query", "api key"),
    "cookie": SecurityScheme("cookie", "apiKey", "cookie", "sid"),
    "word": SecurityScheme("word", "http", scheme="Basic"),
    "token": SecurityScheme("token", "http", scheme="bearer"),
    "oauth": SecurityScheme("oauth", "oauth2"),
    "odd": SecurityScheme("odd", "http", scheme="DPoP"),
}


def stamped(
    security: list[dict[str, tuple[str, ...]]], *ours: ApiCredential
) -> tuple[bindings.RequestCredentials, tuple[str, ...]]:
    return bindings.select_credentials(Operation("op", "GET", "/x", security=tuple(security)), SCHEMES, ours)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("key", bindings.RequestCredentials({"X-Key": "a&b"})),
        ("query", bindings.RequestCredentials(query="api%20key=a%26b")),
        ("cookie", bindings.RequestCredentials(cookie="sid=a&b")),
        ("word", bindings.RequestCredentials({"Authorization": f"Basic {b64encode(b'a&b').decode()}"})),
        ("token", bindings.RequestCredentials({"Authorization": "Bearer a&b"})),
        ("oauth", bindings.RequestCredentials({"Authorization": "Bearer a&b"})),
        ("odd", bindings.RequestCredentials({"Authorization": "DPoP a&b"})),
    ],
)
def test_credential_location_comes_from_document(name: str, expected: bindings.RequestCredentials):
    assert stamped([{name: ()}], ApiCredential("a&b", "scheme", name)) == (expected, ())
    assert stamped([], ApiCredential("a&b", "scheme", name)) == (bindings.RequestCredentials(), ())


def test_first_satisfiable_security_option_is_used():
    key, token = ApiCredential("k", "scheme", "key"), ApiCredential("t", "scheme", "token")
    both: list[dict[str, tuple[str, ...]]] = [{"key": (), "query": ()}, {"token": ()}]
    assert stamped(both, key, token)[0] == bindings.RequestCredentials({"Authorization": "Bearer t"})
    assert stamped(both, key) == (bindings.RequestCredentials({"X-Key": "k"}), ("query",))
    assert stamped([{}, {"key": ()}]) == (bindings.RequestCredentials(), ())
    assert "k" not in repr(stamped(both, key))


def test_cookie_is_escaped_and_typed_credentials_always_sent():
    stamp, _ = stamped([{"cookie": ()}], ApiCredential("a; admin=1", "scheme", "cookie"))
    assert stamp.cookie == "sid=a%3B%20admin=1"
    always = [ApiCredential("k", "apiKey", "X-Api", "header"), ApiCredential("u:p", "basic")]
    assert dict(stamped([], *always)[0].headers) == {"X-Api": "k", "Authorization": "Basic dTpw"}


def test_credential_declared_as_parameter_is_sent():
    parameter = Parameter("key", "api key", "query", user_supplied=True)
    operation = Operation("op", "GET", "/x", (parameter,))
    stamp, _ = bindings.select_credentials(operation, SCHEMES, [ApiCredential("k", "scheme", "query")])
    assert stamp.query == "api%20key=k"


# -- statuses ---------------------------------------------------------------------------------------------------------

ANSWERS = (200, 201, 204, 304, 400, 402, 404, 409, 410, 412, 418, 422, 423, 424, 426, 428, 431, 451, 499)


def test_every_status_is_final_or_has_a_certainty():
    assert [status for status in range(200, 600) if responses.is_final_status(status) and status in ANSWERS] == list(
        ANSWERS
    )
    for status in (401, 403, 405, 406, 413, 415, 421, 429):
        assert not responses.is_final_status(status)
        assert responses.error_for_status(status, {}, b"").certainty is Certainty.REJECTED
    for status in (408, 425, *range(500, 600)):
        assert not responses.is_final_status(status)
        assert responses.error_for_status(status, {}, b"").certainty is Certainty.UNKNOWN
    assert responses.error_for_status(503, {"retry-after": "5"}, b"").certainty is Certainty.REJECTED
    assert responses.error_for_status(500, {"retry-after": "5"}, b"").certainty is Certainty.UNKNOWN


HERE = HttpTarget.parse("https://api.example/v1/x")


@pytest.mark.parametrize(
    ("method", "status", "location", "expected"),
    [
        ("GET", 301, "/y", "/y"),
        ("GET", 303, "/y", "/y"),
        ("POST", 307, "y", "/v1/y"),
        ("POST", 308, "https://api.example/y", "/y"),
        ("POST", 302, "/y", Certainty.UNKNOWN),
        ("POST", 303, "/y", Certainty.UNKNOWN),
        ("POST", 307, "https://evil.example/", Certainty.REJECTED),
        ("GET", 302, "https://evil.example/", Certainty.REJECTED),
        ("GET", 302, "http://api.example/v1/x", Certainty.REJECTED),
        ("GET", 302, "", Certainty.REJECTED),
        ("DELETE", 301, "javascript:1", Certainty.UNKNOWN),
    ],
)
@pytest.mark.attack("held-44")
def test_redirect_is_followed_or_fails_with_certainty(method: str, status: int, location: str, expected: Any):
    operation = Operation("op", method, "/x")
    if isinstance(expected, str):
        found = responses.follow_redirect(operation, HERE, status, {"location": location})
        assert found is not None and (found.path, found.origin) == (expected, HERE.origin)
    else:
        with pytest.raises(TransportError) as caught:
            responses.follow_redirect(operation, HERE, status, {"location": location})
        assert caught.value.certainty is expected
    documented = Operation("op", method, "/x", responses=(ApiResponse(str(status)),))
    if "example" in location and not isinstance(expected, str):
        assert responses.follow_redirect(documented, HERE, status, {"location": location}) is None


# -- results ----------------------------------------------------------------------------------------------------------


def test_json_result_is_structured_and_keeps_location():
    result = responses.result_from_json(OPERATION, 201, {"location": "/x/1", "x-other": "1"}, b'{"a": 1}', {"a": 1})
    assert (result["structuredContent"], result["content"][0]["text"]) == ({"a": 1}, '{"a": 1}')
    assert result["_meta"]["toolway/http"] == {"status": 201, "headers": {"location": "/x/1"}}
    for value in ([1], 1, None, "x"):
        assert responses.result_from_json(OPERATION, 200, {}, b"", value)["structuredContent"] == {"result": value}


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        ("text/html; charset=latin-1", b"\xe9", {"type": "text", "text": "é"}),
        ("application/xml", b"<a/>", {"type": "text", "text": "<a/>"}),
        ("text/plain; charset=nonsense", b"x", {"type": "text", "text": "x"}),
        ("image/png", b"\x89", {"type": "image", "data": "iQ==", "mimeType": "image/png"}),
        ("audio/mpeg", b"\x89", {"type": "audio", "data": "iQ==", "mimeType": "audio/mpeg"}),
        ("", b"words", {"type": "text", "text": "words"}),
        ("", b"\0", {"type": "resource"}),
        ("application/pdf", b"%", {"type": "resource"}),
    ],
)
def test_non_json_result_keeps_its_type(kind: str, body: bytes, expected: dict[str, Any]):
    block = responses.result_from_bytes(OPERATION, 200, {"content-type": kind} if kind else {}, body)["content"][0]
    if expected["type"] == "resource":
        resource = block["resource"]
        assert resource["blob"] == b64encode(body).decode()
        assert resource["mimeType"] == (kind or "application/octet-stream")
    else:
        assert block == expected


def test_empty_result_names_status_and_404_is_unstructured_error():
    promised = Operation("op", "GET", "/x", tool={"outputSchema": {"type": "object"}})
    empty = responses.result_from_bytes(promised, 204, {}, b"")
    assert (empty["content"][0]["text"], empty["structuredContent"]) == ("204 No Content", {})
    no = responses.result_from_bytes(promised, 404, {"content-type": "application/problem+json"}, b'{"title": "gone"}')
    assert no["isError"] is True and "structuredContent" not in no
    assert [block["text"] for block in no["content"]] == ["404 Not Found", '{"title": "gone"}']


# -- pages ------------------------------------------------------------------------------------------------------------


def listing(*names: str, kind: str = "string") -> Operation:
    parameters = [{"name": name, "in": "query", "schema": {"type": kind}} for name in names]
    paths = {"/x": {"get": {"operationId": "op", "parameters": parameters, "responses": {}}}}
    data = {"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": paths}
    return load_document(json.dumps(data).encode(), source="t").operations[0]


URL = "https://api.example/v1/x?page=1"


@pytest.mark.parametrize(
    ("operation", "given", "headers", "value", "expected"),
    [
        (listing("page", kind="integer"), {}, {"link": '</v1/x?page=2>; rel="next"'}, [], {"page": 2}),
        (listing("page"), {}, {"link": f'<{URL}>; rel="prev", </v1/x?page=3>; rel="next"'}, [], {"page": "3"}),
        (listing("page"), {}, {"link": '<https://api.example/other?page=2>; rel="next"'}, [], None),
        (listing("page"), {}, {"link": '</v1/x?page=2&secret=1>; rel="next"'}, [], None),
        (listing("cursor", "n"), {"n": "5"}, {}, {"next_cursor": "abc"}, {"n": "5", "cursor": "abc"}),
        (listing("cursor"), {}, {}, {"response_metadata": {"next_cursor": ""}}, None),
        (listing("cursor"), {"cursor": "abc"}, {}, {"next_cursor": "abc"}, None),
        (listing("pageToken"), {}, {}, {"nextPageToken": "t"}, {"pageToken": "t"}),
        (listing("after"), {}, {}, {"has_more": True, "last_id": "z"}, {"after": "z"}),
        (listing("after"), {}, {}, {"has_more": False, "last_id": "z"}, None),
        (listing("page", kind="integer"), {"page": 4}, {}, {"has_more": True}, {"page": 5}),
        (listing("page", kind="integer"), {}, {}, {"has_more": True}, {"page": 2}),
        (listing("Page"), {}, {}, {"next_page_uri": "/v1/x?Page=1"}, {"Page": "1"}),
        (listing("page"), {}, {}, {"links": {"next": {"href": "?page=2"}}}, {"page": "2"}),
        (listing("q"), {}, {}, {"next_cursor": "abc"}, None),
        (listing(), {}, {"link": '</v1/x?page=2>; rel="next"'}, [], None),
    ],
)
def test_next_page_arguments(operation: Operation, given: dict[str, Any], headers: Any, value: Any, expected: Any):
    assert transport.next_page_arguments(operation, given, URL, headers, value) == expected


def test_slow_link_header_has_no_next_page():
    for evil in ("<" * 100_000, "<a>;" + " ;" * 50_000, '<a>; rel="' + "n" * 100_000):
        assert transport.next_page_arguments(listing("page"), {}, URL, {"link": evil[:60_000]}, None) is None
