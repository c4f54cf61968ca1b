"""Suggests names for an unknown tool: the closest ones among tools that the caller may see."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from difflib import SequenceMatcher
from heapq import nlargest
from typing import Final

from toolway.catalog.catalog import Item
from toolway.protocol.tool_names import parse_tool_name

MAX_SUGGESTIONS: Final = 3
MAX_NAME_CHARS: Final = 128  # of an unknown name; a longer one gets no suggestion
MAX_COMPARED: Final = 2000  # names of about the same length that are compared letter by letter
SLICE_NAMES: Final = 100  # names in one slice
MIN_RATIO: Final = 0.8  # of the letters that two names have in common
MIN_BARE_RATIO: Final = 0.7  # the same, for the server's own name of a tool, which is shorter
_SEPARATORS: Final = re.compile(r"[^a-z0-9]+")


def find_near_names(name: str, tools: Mapping[str, Item]) -> Generator[None, None, list[str]]:
    """Find the names in `tools` that a caller of the unknown `name` may have meant, closest first.

    `tools` are the caller's tools by the names that the caller sees. If some names differ only in server, case, or
    separators, only those are returned. This generator yields between slices of names, so other tasks can run.
    """
    if not name or len(name) > MAX_NAME_CHARS:
        return []
    ref = parse_tool_name(name.lower())
    wanted = {_fold(name), _fold(ref.tool if ref is not None else name)} - {"", "_"}
    same = []
    for place, (visible, item) in enumerate(tools.items(), 1):
        if place % SLICE_NAMES == 0:
            yield
        if _fold(visible) in wanted or _fold(item.name) in wanted:
            same.append(visible)
    if same:
        return same[:MAX_SUGGESTIONS]
    matcher, compared = SequenceMatcher(None, b=name.lower()), 0
    found: list[tuple[float, str]] = []
    for place, (visible, item) in enumerate(tools.items(), 1):
        if place % SLICE_NAMES == 0:
            yield
        for candidate, least in ((visible, MIN_RATIO), (item.name, MIN_BARE_RATIO)):
            matcher.set_seq1(candidate.lower())
            if len(candidate) > MAX_NAME_CHARS or matcher.real_quick_ratio() < least:
                continue
            compared += 1
            if matcher.quick_ratio() >= least and (ratio := matcher.ratio()) >= least:
                found.append((ratio, visible))
                break
        if compared >= MAX_COMPARED:
            break
    return [visible for _, visible in nlargest(MAX_SUGGESTIONS, found, key=lambda each: each[0])]


def _fold(name: str) -> str:
    return _SEPARATORS.sub("_", name.lower())
