"""Table of related words (photo≈picture, delete≈remove), packed into `related.bin`.

The file is zlib-compressed text: one line per stem, `stem other=72 other=64`, with the likeness in hundredths. It was
made from the token embeddings of all-MiniLM-L6-v2 (Apache-2.0); see the README of bench/search/data. A line is parsed
on first use of its word.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import TypeAlias

Related: TypeAlias = Callable[[str], Sequence[tuple[str, float]]]


class RelatedWords:
    """Related words by stem, with their likeness between 0 and 1."""

    def __init__(self, packed: bytes) -> None:
        lines = zlib.decompress(packed).decode().splitlines()
        self._lines: dict[str, str] = dict(line.split(" ", 1) for line in lines)
        self._parsed: dict[str, tuple[tuple[str, float], ...]] = {}

    def __call__(self, word: str) -> tuple[tuple[str, float], ...]:
        """Return the words that are related to `word`, each with its likeness from 0 to 1."""
        found = self._parsed.get(word)
        if found is None:
            line = self._lines.get(word)
            if line is None:
                return ()
            pairs = (each.partition("=") for each in line.split(" "))
            found = self._parsed[word] = tuple((other, int(likeness) / 100) for other, _, likeness in pairs)
        return found


def pack(table: Mapping[str, Sequence[tuple[str, float]]]) -> bytes:
    """Return a table of related words in the form of `related.bin`."""
    lines = (
        " ".join((word, *(f"{other}={round(likeness * 100)}" for other, likeness in others)))
        for word, others in sorted(table.items())
    )
    return zlib.compress("\n".join(lines).encode(), 9)


@functools.cache
def load_related_words() -> RelatedWords:
    """Return the table of related words that the package contains. It is loaded once per process."""
    return RelatedWords(resources.files("toolway.search").joinpath("related.bin").read_bytes())
