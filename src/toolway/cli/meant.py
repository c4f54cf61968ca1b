"""What was probably meant by a name that does not exist."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean tools?`, or nothing where no name is like it."""
    from difflib import get_close_matches

    close = get_close_matches(name, list(known), n=3)
    return f"did you mean {' or '.join(close)}?" if close else ""
