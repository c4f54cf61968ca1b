"""Text of strangers made fit to be shown. Apart from `wire`, so that what only shows something loads no protocol."""

from __future__ import annotations

import re
from typing import Final

# Control characters but tab and newline, and those that turn the direction of text or hide in it.
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


def clean_text(text: str, limit: int) -> str:
    """Text of a server made fit to be shown: no control or direction characters, bounded."""
    text = _CONTROL.sub("", text)
    return text if len(text) <= limit else text[: limit - 1] + "…"
