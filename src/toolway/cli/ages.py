"""Times as people say them."""

from __future__ import annotations

_UNITS = ((60, 1, "s"), (3600, 60, "min"), (2 * 86400, 3600, "h"))  # below this, so many seconds, called


def for_so_long(seconds: float) -> str:
    """`5 s`, `12 min`, `30 h`, `12 days`."""
    for limit, size, unit in _UNITS:
        if seconds < limit:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds // 86400)} days"


def ago(seconds: float) -> str:
    """`just now`, `5 min ago`."""
    return "just now" if seconds < 10 else f"{for_so_long(seconds)} ago"
