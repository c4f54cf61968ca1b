"""Results of a tool search: the matches with their reasons, and servers whose tools may be missing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from toolway.catalog.catalog import Tool

ReasonKind: TypeAlias = Literal["word", "related", "meaning", "history", "name", "bonus"]


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason for the score of a found tool, such as a word of the query in its name.

    `kind` is "word" (a word of the query), "related" (a related word), "meaning" (the embedding model), "history"
    (earlier calls after such a query), "name" (the query is the name of the tool) or "bonus" (what the words of the
    tool's name in the query, and other fitting tools of its server, add).
    """

    kind: ReasonKind
    text: str  # the word; `make≈create` if the tool has a related word; "" for meaning
    fields: tuple[str, ...] = ()  # where the word is: name, server, description, parameter, parameter text, …
    weight: float = 0.0  # its part of the score

    def __str__(self) -> str:
        where = f" in {', '.join(self.fields)}" if self.fields else ""
        return f"{self.text or self.kind}{where} ({self.weight:.2f})"


@dataclass(frozen=True, slots=True)
class ToolMatch:
    """A tool that fits a search, with its score and the reasons for it.

    `score` is between 0 and 1. Compare it only within one search.

    Example:
        for match in await hub.search_tools("make an issue from this mail"):
            print(match.score, match.tool.qualified_name, *match.reasons)
    """

    tool: Tool
    score: float
    reasons: tuple[Reason, ...] = field(default=(), repr=False)
    step: int = 0  # index of the query that found it, if the search had several


@dataclass(frozen=True, slots=True)
class SearchNotes:
    """Limits of a search result: servers that are down or have sent no list yet, and tools that need review."""

    down: tuple[str, ...] = ()  # servers that are not available now; their known tools are found
    not_listed: tuple[str, ...] = ()  # servers that have not sent a list of tools yet
    held: int = 0  # tools that need review; they are never found
    meaning: str = ""  # why the embedding model did not take part, or "" if it did or none is configured


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """Result of a tool search: the matches, best first, and notes on what the search could not cover.

    `fits` is False if nothing fits well: the matches are then only the nearest tools.
    """

    matches: tuple[ToolMatch, ...]
    total_tools: int  # tools that were searched: those that the principal may see
    total_servers: int
    fits: bool
    notes: SearchNotes = SearchNotes()
