"""The `Retry-After` header: how long a server asks us to stay away.

A date is read against the response's own `Date`, so that the clocks of two hosts are never compared.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

_SECONDS: Final = re.compile(r"[0-9]{1,10}(?:\.[0-9]{1,6})?")
_LONGEST_DATE: Final = 64


def parse_retry_after(value: str | None, date: str | None) -> float | None:
    """Seconds to wait, or None where the header is missing, unreadable or lies in the past."""
    if value is None:
        return None
    value = value.strip()
    if _SECONDS.fullmatch(value):
        return float(value)
    until, now = _moment(value), _moment(date)
    if until is None or now is None or until < now:
        return None
    return (until - now).total_seconds()


def _moment(text: str | None) -> datetime | None:
    if text is None or len(text) > _LONGEST_DATE:
        return None
    try:
        moment = parsedate_to_datetime(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
