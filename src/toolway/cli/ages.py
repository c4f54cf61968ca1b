"""Times as people say them."""

from __future__ import annotations

_STEPS = ((60, "s"), (3600, "min"), (86400, "h"))
_DIVISORS = {"s": 1, "min": 60, "h": 3600}


def ago(seconds: float) -> str:
    """`just now`, `5 min ago`, `3 h ago`, `12 days ago`."""
    if seconds < 10:
        return "just now"
    for limit, unit in _STEPS:
        if seconds < limit:
            return f"{seconds // _DIVISORS[unit]:.0f} {unit} ago"
    days = int(seconds // 86400)
    return f"{days} day{'s' if days > 1 else ''} ago"
