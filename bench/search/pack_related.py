"""Pack bench/search/data/related-words.json into src/toolway/search/related.bin."""

from __future__ import annotations

from pathlib import Path

from bench.search.sets import load
from toolway.search import related


def packed() -> bytes:
    """Return the table of related words in the form of the package."""
    return related.pack(
        {word: [(other, likeness) for other, likeness in found] for word, found in load("related-words").items()}
    )


if __name__ == "__main__":
    target = Path(related.__file__).with_name("related.bin")
    target.write_bytes(packed())
    print(f"{target.name}: {target.stat().st_size:,} bytes")
