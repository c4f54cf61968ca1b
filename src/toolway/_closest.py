"""Names similar to a misspelled one, for hints."""

from __future__ import annotations

from collections.abc import Iterable


def closest(name: str, known: Iterable[str], count: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return the names in `known` that are most similar to `name`, at most `count`."""
    from difflib import get_close_matches  # slow to import, and most names are spelled correctly

    return get_close_matches(name, list(known), n=count, cutoff=cutoff)


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a hint such as `did you mean 'jsonl'?`; "" if no name in `known` is similar."""
    found = closest(name, known, cutoff=cutoff)
    return f"did you mean {found[0]!r}?" if found else ""
