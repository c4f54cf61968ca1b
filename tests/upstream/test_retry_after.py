"""`Retry-After`, as servers write it."""

from __future__ import annotations

import pytest

from toolway.upstream.transports.http_responses import parse_retry_after

DATE = "Sun, 15 Nov 2026 12:00:00 GMT"


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("7", 7.0), ("0", 0.0), (" 12 ", 12.0), ("1.5", 1.5), ("1000000000", 1e9), ("007", 7.0)],
)
def test_seconds_are_parsed(value: str, seconds: float) -> None:
    assert parse_retry_after(value, None) == seconds


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("Sun, 15 Nov 2026 12:00:30 GMT", 30.0),
        ("Sunday, 15-Nov-26 12:01:00 GMT", 60.0),
        ("Sun Nov 15 12:00:05 2026", 5.0),
        ("Sun, 15 Nov 2026 12:00:00 GMT", 0.0),
        ("Sun, 15 Nov 2026 13:00:30 +0100", 30.0),
    ],
)
def test_date_is_relative_to_response_date(value: str, seconds: float) -> None:
    assert parse_retry_after(value, DATE) == seconds


def test_wrong_server_clock_does_not_matter() -> None:
    assert parse_retry_after("Sat, 01 Jan 2000 00:00:09 GMT", "Sat, 01 Jan 2000 00:00:00 GMT") == 9.0


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "soon",
        "-5",
        "+5",
        "1e3",
        "1,5",
        "NaN",
        "inf",
        "5 seconds",
        "٣",
        "9" * 5000,
        "Sun, 15 Nov 2026 11:59:59 GMT",
        "Sun, 99 Nov 2026 12:00:00 GMT",
        "Sun, 15 Nov 2026 99:00:00 GMT",
        "Sun, 15 Nov 0000 12:00:00 GMT",
        "Sun, 15 Nov 99999999999 12:00:00 GMT",
        "Sun, 15 Nov 2026 12:00:30 +9999999999",
        "GMT " * 50,
        ",,,,",
        "\0",
    ],
)
def test_invalid_or_past_value_is_ignored(value: str | None) -> None:
    assert parse_retry_after(value, DATE) is None


@pytest.mark.parametrize("date", [None, "", "yesterday"])
def test_date_without_response_date_is_ignored(date: str | None) -> None:
    assert parse_retry_after("Sun, 15 Nov 2026 12:00:30 GMT", date) is None
