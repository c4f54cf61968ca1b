"""What is hidden before anything is written down."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolway.telemetry.redact import CUT, DEEPEST, LONGEST, WIDEST, Redactor

HIDES = Redactor(b"key", ["iban"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
)


@pytest.mark.parametrize(
    "value",
    [
        {"password": "canary-1"},
        {"apiKey": ["canary-1", {"x": "canary-1"}]},
        {"IBAN": "canary-1"},
        {"Authorization": "Bearer canary-1"},
        {"text": "ghp_canary1canary1canary1canary1"},
        {"list": [{"deep": {"client_secret": "canary-1"}}]},
        {"url": "https://me:canary-1@example.com/"},
        {"text": "look at https://example.com/a?key=canary-1 please"},
        {"pem": "-----BEGIN PRIVATE KEY-----canary-1"},
    ],
)
def test_a_secret_is_hidden_wherever_it_stands(value: Any) -> None:
    assert "canary" not in str(HIDES.value(value))


def test_what_is_no_secret_stays() -> None:
    value = {"query": "is:open", "limit": 5, "max_tokens": 100, "tags": ["a", None, True], "path": "/tmp/key.txt"}
    assert HIDES.value(value) == value


def test_equal_secrets_have_equal_marks_under_one_key_alone() -> None:
    one, other = (HIDES.value({"password": text})["password"] for text in ("abc", "abd"))
    assert one == HIDES.value({"token": "abc"})["token"] != other
    assert one != Redactor(b"another").value({"password": "abc"})["password"]


def test_what_is_too_large_is_cut() -> None:
    deep: Any = "x"
    for _ in range(DEEPEST + 5):
        deep = [deep]
    assert CUT in str(HIDES.value(deep))
    assert len(HIDES.value(list(range(WIDEST + 10)))) == WIDEST + 1
    assert len(HIDES.value({str(n): n for n in range(WIDEST + 10)})) == WIDEST + 1
    assert len(HIDES.value("word " * LONGEST)) == LONGEST + 1


@given(JSON)
def test_any_json_can_be_redacted_and_digested(value: Any) -> None:
    HIDES.value(value)
    assert len(HIDES.digest(value)) == 32
