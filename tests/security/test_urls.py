from __future__ import annotations

import pytest

from toolway.model import NotAuthorized
from toolway.security.urls import check_url


@pytest.mark.parametrize(
    "url",
    ["https://issuer.example/a?b=c", "http://localhost:1/", "http://127.0.0.1:8000", "http://[::1]:1/x"],
)
def test_https_and_this_machine_may_be_asked(url: str) -> None:
    check_url(url)


@pytest.mark.parametrize(
    "url",
    [
        *("http://issuer.example/", "http://10.0.0.1/", "http://127.0.0.1.example/", "http://localhost.example/"),
        *("javascript:alert(1)", "file:///etc/passwd", "ftp://issuer.example/", "--flag", "", "https://", "//host/x"),
        *("https://user:word@issuer.example/", "https://issuer.example/\r\nHost: x", "https://[::1", "$(id)"),
    ],
)
def test_nothing_else_is_opened(url: str) -> None:
    with pytest.raises(NotAuthorized) as caught:
        check_url(url)
    assert caught.value.code == "E-AUTH-URL"
