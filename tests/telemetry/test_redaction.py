"""Redaction of stored values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolway.telemetry.redaction import CUT_MARK, MAX_DEPTH, MAX_MEMBERS, MAX_TEXT_CHARS, Redactor

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
def test_secret_is_hidden_at_any_position(value: Any) -> None:
    assert "canary" not in str(HIDES.redact(value))


def test_other_values_are_unchanged() -> None:
    value = {"query": "is:open", "limit": 5, "max_tokens": 100, "tags": ["a", None, True], "path": "/tmp/key.txt"}
    assert HIDES.redact(value) == value


def test_placeholders_are_equal_only_for_same_secret_and_key() -> None:
    one, other = (HIDES.redact({"password": text})["password"] for text in ("abc", "abd"))
    assert one == HIDES.redact({"token": "abc"})["token"] != other
    assert one != Redactor(b"another").redact({"password": "abc"})["password"]


def test_large_values_are_cut() -> None:
    deep: Any = "x"
    for _ in range(MAX_DEPTH + 5):
        deep = [deep]
    assert CUT_MARK in str(HIDES.redact(deep))
    assert len(HIDES.redact(list(range(MAX_MEMBERS + 10)))) == MAX_MEMBERS + 1
    assert len(HIDES.redact({str(n): n for n in range(MAX_MEMBERS + 10)})) == MAX_MEMBERS + 1
    assert len(HIDES.redact("word " * MAX_TEXT_CHARS)) == MAX_TEXT_CHARS + 1


@given(JSON)
def test_any_json_can_be_redacted_and_digested(value: Any) -> None:
    HIDES.redact(value)
    assert len(HIDES.digest(value)) == 32
