"""Sanitizing of untrusted text for display.

A separate module, so that display code loads no protocol.
"""

from __future__ import annotations

import re
from typing import Final

# Control characters except tab and newline, and characters that change the text direction or are invisible.
_UNPRINTABLE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


def sanitize(text: str, limit: int) -> str:
    """Remove control and direction characters from untrusted text; cut it to `limit` characters."""
    text = _UNPRINTABLE.sub("", text)
    return text if len(text) <= limit else text[: limit - 1] + "…"
