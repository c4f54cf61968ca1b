"""Sections of a page that a measurement writes, each with its date and commit."""

from __future__ import annotations

import datetime
from pathlib import Path

from bench.machine import measured_commit


def read_section(page: Path, name: str) -> str:
    """Return the text between the comments `measured: NAME` and `end: NAME` of a page.

    Raises `ValueError` if the page has no such comments.
    """
    return _split(page, name)[1]


def write_section(page: Path, name: str, text: str, *, stamp: bool = True) -> None:
    """Replace the text between the comments, after today's date and the commit of this tree if `stamp` is true."""
    before, _, after = _split(page, name)
    measured = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, commit {measured_commit()}.\n\n" if stamp else ""
    page.write_text(f"{before}\n\n{measured}{text}\n\n{after}")


def _split(page: Path, name: str) -> tuple[str, str, str]:
    """Return the page up to the first comment, the text between both, and the page from the second comment."""
    begin, end = f"<!-- measured: {name} -->", f"<!-- end: {name} -->"
    before, found, rest = page.read_text().partition(begin)
    text, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{page.name} has no section {begin} … {end}")
    return before + begin, text.strip(), end + after
