from __future__ import annotations

import pytest

from toolway.auth.urls import check_oauth_url
from toolway.types import AuthError


@pytest.mark.parametrize(
    "url",
    ["https://issuer.example/a?b=c", "http://localhost:1/", "http://127.0.0.1:8000", "http://[::1]:1/x"],
)
def test_https_and_local_urls_are_accepted(url: str) -> None:
    check_oauth_url(url)


@pytest.mark.parametrize(
    "url",
    [
        *("http://issuer.example/", "http://10.0.0.1/", "http://127.0.0.1.example/", "http://localhost.example/"),
        *("javascript:alert(1)", "file:///etc/passwd", "ftp://issuer.example/", "--flag", "", "https://", "//host/x"),
        *("https://user:word@issuer.example/", "https://issuer.example/\r\nHost: x", "https://[::1", "$(id)"),
    ],
)
def test_other_urls_are_rejected(url: str) -> None:
    with pytest.raises(AuthError) as caught:
        check_oauth_url(url)
    assert caught.value.code == "E-AUTH-URL"
