from __future__ import annotations

import json
from typing import Any

import pytest

from toolway.auth.refresh import parse_expires_in, parse_refresh_response, refresh_request
from toolway.auth.token_store import Credential, OAuthClient
from toolway.types import AuthError

HELD = Credential(
    issuer="https://issuer.example",
    token_url="https://issuer.example/token",
    client=OAuthClient("me", "canary-secret", "client_secret_basic"),
    access="canary-access",
    refresh="canary-refresh",
    scope="read write",
    resource="https://server.example/mcp",
)
GOOD = {"access_token": "new", "token_type": "bearer", "expires_in": 100}


def _after(status: int = 200, **answer: Any) -> Credential:
    return parse_refresh_response(HELD, status, json.dumps({**GOOD, **answer}).encode(), 1000.0)


def test_missing_fields_keep_their_old_value() -> None:
    new = _after()
    assert (new.access, new.refresh, new.scope) == ("new", "canary-refresh", "read write")
    assert (new.renew_at, new.expires_at) == (1075.0, 1100.0)


def test_rotated_refresh_token_and_narrower_scope_are_used() -> None:
    new = _after(refresh_token="next", scope="read")
    assert (new.refresh, new.scope) == ("next", "read")


@pytest.mark.parametrize(
    "answer",
    [
        {"scope": "read write admin"},
        {"iss": "https://other.example"},
        {"issuer": "https://issuer.example/"},
        {"token_type": "mac"},
        {"token_type": None},
        {"access_token": ""},
        {"access_token": 7},
        {"access_token": "a b"},
        {"access_token": "a\r\nX-Header: b"},
    ],
)
def test_invalid_refresh_response_is_rejected(answer: dict[str, Any]) -> None:
    with pytest.raises(AuthError) as caught:
        _after(**answer)
    assert caught.value.code == "E-AUTH-ANSWER"


@pytest.mark.parametrize(("error", "code"), [("invalid_grant", "E-AUTH-LOGIN"), ("server_error", "E-AUTH-SERVER")])
def test_refresh_error_repeats_no_secret(error: str, code: str) -> None:
    with pytest.raises(AuthError) as caught:
        _after(400, error=error, error_description="canary-refresh was sent by canary-secret")
    assert caught.value.code == code
    assert "canary" not in f"{caught.value.reason} {caught.value.hint}"
    with pytest.raises(AuthError) as caught:
        _after(400, error="canary-refresh: no")
    assert "canary" not in caught.value.reason


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b"[" * 100_000, b'{"access_token"'])
def test_non_object_refresh_response_is_rejected(body: bytes) -> None:
    with pytest.raises(AuthError):
        parse_refresh_response(HELD, 200, body, 0.0)


def test_client_authenticates_as_registered() -> None:
    form, headers = refresh_request(HELD)
    assert "client_secret" not in form and headers["Authorization"].startswith("Basic ")
    form, headers = refresh_request(Credential("i", "t", OAuthClient("me", "secret", "client_secret_post"), "a", "r"))
    assert form["client_secret"] == "secret" and "Authorization" not in headers
    form, headers = refresh_request(Credential("i", "t", OAuthClient("me"), "a", "r"))
    assert form == {"grant_type": "refresh_token", "refresh_token": "r", "client_id": "me"}


def test_credential_repr_has_no_secret() -> None:
    assert "canary" not in repr(HELD)


@pytest.mark.parametrize(
    ("value", "seconds"), [(5, 5.0), ("60", 60.0), (None, None), (-1, None), (True, None), ("x", None), (1e300, None)]
)
def test_expires_in_is_parsed(value: object, seconds: float | None) -> None:
    assert parse_expires_in(value) == seconds
