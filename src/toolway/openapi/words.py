"""Text of a document, cut to what a model needs."""

from __future__ import annotations

import re
from typing import Any, Final

TOOL: Final = 1000  # characters of a tool's description
FIELD: Final = 300  # of an argument's or a property's

_LINK: Final = re.compile(r"\[([^\[\]]{1,200})\]\([^()\s]{0,500}\)")
_TAG: Final = re.compile(
    r"</?(?:p|br|a|b|i|em|strong|ul|ol|li|code|pre|div|span|h[1-6]|table|thead|tbody|tr|td|th|sup|sub|hr)\b[^<>]{0,300}>"
)
_UNSEEN: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]"
)
_SPACE: Final = re.compile(r"[ \t]+")
_LINES: Final = re.compile(r"\n\s*\n\s*")


def cleaned(text: Any, limit: int) -> str:
    """`text` without links, tags and characters that nobody sees, cut at a word."""
    if not isinstance(text, str):
        return ""
    text = text[: limit * 4]  # enough for what is taken out
    for pattern, instead in ((_UNSEEN, ""), (_LINK, r"\1"), (_TAG, " "), (_SPACE, " "), (_LINES, "\n\n")):
        text = pattern.sub(instead, text)
    return cut(text.strip(), limit)


def cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    head = text[: limit - 2]
    for mark in (". ", ".\n", "\n", " "):
        end = head.rfind(mark)
        if end > limit // 2:
            return f"{head[: end + 1].rstrip()} …"
    return f"{head} …"


def of_operation(operation: Any, method: str, path: str) -> tuple[str, str]:
    """The title and the description of a tool."""
    summary = cleaned(operation.get("summary"), 200).replace("\n", " ")
    text = cleaned(operation.get("description"), TOOL)
    if not text or text.startswith(summary):
        whole = text or summary or f"{method} {path}"
    else:
        whole = cut(f"{summary}\n\n{text}" if summary else text, TOOL)
    if operation.get("deprecated") is True:
        whole = f"Deprecated. {whole}"
    return cut(summary, 80), whole
