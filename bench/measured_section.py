"""Sections of a page that a measurement writes, each with its date and commit."""

from __future__ import annotations

import datetime
from pathlib import Path

from bench.machine import measured_commit


def write_section(page: Path, name: str, text: str) -> None:
    """Replace the text between the comments `measured: NAME` and `end: NAME` of a page.

    Raises `ValueError` if the page has no such comments.
    """
    begin, end = f"<!-- measured: {name} -->", f"<!-- end: {name} -->"
    before, found, rest = page.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{page.name} has no section {begin} … {end}")
    stamp = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, commit {measured_commit()}."
    page.write_text(f"{before}{begin}\n\n{stamp}\n\n{text}\n\n{end}{after}")
