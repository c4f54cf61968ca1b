"""Entries of HTTP APIs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from toolway.config.masking import build_masker, mask_value
from toolway.config.schema import Server
from toolway.config.secrets import list_secret_refs, substitute_secrets
from toolway.config.server_entry import parse_entry, parse_entry_with_issues
from toolway.errors import ConfigError
from toolway.parts.openapi.settings import IDEMPOTENCY_META_KEY, ApiCredential, OpenApi, OpenApiFilter, settings_of

DOCUMENT = "https://api.example/openapi.json"


def api(**openapi: Any) -> Server:
    return parse_entry({"type": "openapi", "openapi": {"url": DOCUMENT, **openapi}})


def problem(value: dict[str, Any]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_entry(value)
    return caught.value


def test_document_may_be_url_file_or_inline():
    assert api().transport_settings == OpenApi(url=DOCUMENT)
    assert parse_entry({"openapi": DOCUMENT}) == api()
    assert (
        parse_entry({"openapi": "~/api.yaml"}).transport_settings
        != parse_entry({"openapi": "api.yaml"}).transport_settings
    )
    inline = {"openapi": "3.1.0", "info": {"title": "${HOME}", "version": "1"}, "paths": {}}
    for key in ("document", "schema"):
        found = settings_of(parse_entry({"type": "openapi", "openapi": {key: inline}}))
        assert found is not None and found.document == inline


def test_openapi_entry_has_its_own_transport_and_base_url():
    assert api().transport == "openapi"
    assert api(server="https://api.example/v2").url == "https://api.example/v2"
    assert api(servers=[{"url": "https://api.example/v2"}]).url == "https://api.example/v2"
    assert parse_entry({"url": "https://api.example/v2", "openapi": DOCUMENT}).url == "https://api.example/v2"
    assert (
        "two addresses"
        in problem({"url": "https://x/1", "openapi": {"url": DOCUMENT, "server": "https://x/2"}}).message
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"type": "openapi"}, "needs a document"),
        ({"type": "openapi", "url": DOCUMENT}, "needs a document"),
        ({"type": "openapi", "openapi": {}}, "exactly one of"),
        ({"type": "openapi", "openapi": {"url": DOCUMENT, "file": "x"}}, "exactly one of"),
        ({"type": "http", "url": DOCUMENT, "openapi": DOCUMENT}, 'must have type "openapi"'),
        ({"openapi": DOCUMENT, "command": "x"}, "exactly one of"),
        ({"openapi": {"url": "ftp://x"}}, "must begin with http"),
        ({"openapi": 7}, "must be an object"),
        ({"openapi": {"url": DOCUMENT, "include": ["pets"]}}, "must be an object"),
        ({"openapi": {"url": DOCUMENT, "exclude": {"tag": ["admin"]}}}, "unknown key openapi.exclude.tag"),
        ({"openapi": {"url": DOCUMENT, "idempotencyHeader": "a b"}}, "a header name"),
        ({"openapi": {"url": DOCUMENT, "security": {"type": "apiKey", "value": "x"}}}, "a name and a value"),
        ({"openapi": {"url": DOCUMENT, "security": {"type": "http"}}}, "bearer needs a token"),
        ({"openapi": {"url": DOCUMENT, "security": {"type": "http", "scheme": "basic"}}}, "basic needs"),
        ({"openapi": {"url": DOCUMENT, "security": {"type": "oauth2"}}}, "auth is for servers with a url"),
    ],
)
def test_invalid_openapi_entry_is_explained(value: dict[str, Any], said: str):
    assert said in problem(value).message


def test_operations_are_filtered_by_tag_path_method_and_id():
    found = api(include={"tags": ["pets"], "methods": "get"}, exclude={"paths": ["/admin/*"], "operationIds": ["x"]})
    assert settings_of(found).include == OpenApiFilter(tags=("pets",), methods=("get",))
    assert settings_of(found).exclude == OpenApiFilter(paths=("/admin/*",), operations=("x",))


@pytest.mark.parametrize(
    ("security", "expected"),
    [
        ({"api_key": "k"}, (ApiCredential("k", "scheme", "api_key"),)),
        (
            {"type": "apiKey", "in": "query", "name": "key", "value": "k"},
            (ApiCredential("k", "apiKey", "key", "query"),),
        ),
        ({"type": "apiKey", "apiKey": {"name": "X-Key", "value": "k"}}, (ApiCredential("k", "apiKey", "X-Key"),)),
        ({"type": "http", "scheme": "bearer", "token": "t"}, (ApiCredential("t", "bearer"),)),
        ({"type": "http", "scheme": "basic", "username": "u", "password": "p"}, (ApiCredential("u:p", "basic"),)),
    ],
)
def test_credentials_are_parsed(security: dict[str, Any], expected: tuple[ApiCredential, ...]):
    found = settings_of(api(security=security))
    assert found is not None and found.credentials == expected


def test_oauth2_security_becomes_entry_auth():
    found = api(server="https://api.example", security={"type": "oauth2", "clientId": "us", "scopes": "a b"})
    assert found.auth is not None and (found.auth.client_id, found.auth.scopes) == ("us", ("a", "b"))
    assert not settings_of(found).credentials


def test_idempotency_header_sets_meta_key():
    assert api(idempotencyHeader="Idempotency-Key").idempotency_meta_key == IDEMPOTENCY_META_KEY
    assert api().idempotency_meta_key is None


def test_openapi_secrets_are_resolved_late_and_masked():
    value = {
        "openapi": {
            "url": DOCUMENT,
            "headers": {"X-Doc": "${keyring:doc}"},
            "security": {"type": "http", "scheme": "basic", "username": "u", "password": "${keyring:word}"},
        }
    }
    server = parse_entry(value)
    assert [str(each) for each in list_secret_refs(server)] == ["${keyring:doc}", "${keyring:word}"]
    ready = substitute_secrets(server, dict.fromkeys(list_secret_refs(server), "s3cret-value"))
    assert settings_of(ready).credentials[0].value == "u:s3cret-value"
    assert "s3cret" not in repr(ready)
    plain = {"openapi": {"url": DOCUMENT, "security": {"pets": "canary-of-pets"}}}
    assert "canary" not in json.dumps(mask_value({"mcpServers": {"x": plain}}))
    assert "canary" not in build_masker([parse_entry(plain)])("it sent canary-of-pets")


def test_unknown_openapi_key_is_reported():
    _, problems = parse_entry_with_issues({"openapi": {"url": DOCUMENT, "color": 1}}, {})
    assert [each.message for each in problems] == ["unknown key openapi.color"]
