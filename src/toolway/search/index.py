"""Inverted index of tool definitions: one segment per server, one posting per word. No I/O.

A segment depends only on the definitions of its server: lengths are normalized by constants, not by averages over all
tools. So a server that is added or changed affects the scores of other servers' tools only by the rarity of words. The
tools of a segment have consecutive numbers, higher than all earlier ones: a posting gets and loses them as one range.

An `Index` is immutable; `with_segments` returns a new one that shares what did not change, so a search in a thread
never sees half a change.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from toolway.catalog.catalog import Tool
from toolway.search.words import name_key, split_name, split_stems

K1: Final = 1.2  # how soon more hits of the same word stop counting
B: Final = 0.5  # how much a long field lowers the weight of its words


#: Number and weight of each new tool that has a word, one after the other, by word. Tuples would be objects for the
#: garbage collector: two million for 50,000 tools.
Entries: TypeAlias = defaultdict[str, list[float]]


class Field(NamedTuple):
    """Searched part of a tool definition, such as its name, and how much a word in it counts.

    `usual_words` is its usual number of words, `max_words` how many of them are read at most.
    """

    name: str
    weight: float
    usual_words: float
    max_words: int


FIELDS: Final = (
    Field("name", 3.0, 2.5, 40),
    Field("server", 1.0, 2.0, 20),
    Field("description", 1.0, 18.0, 400),
    Field("parameter", 0.5, 5.0, 120),
    Field("parameter text", 0.3, 25.0, 400),
    Field("server description", 0.5, 20.0, 200),
)


class Posting(msgspec.Struct, frozen=True, gc=False):
    """The tools that contain one word: their numbers (ascending), and the word's weight in each.

    The lists are packed into bytes, which the garbage collector does not scan: an index of 50,000 tools has 100,000
    postings.
    """

    numbers: bytes
    weights: bytes
    max_weight: float  # no weight is higher
    count: int  # of its tools: an attribute, because a search reads it several times for each word

    def pairs(self) -> Iterator[tuple[int, float]]:
        """Return an iterator over (number, weight) of each tool that contains the word."""
        return zip(array("I", self.numbers), array("f", self.weights), strict=True)

    def position(self, number: int) -> int:
        """Return the position of the tool `number` in this posting, or -1 if it does not contain the word."""
        numbers = memoryview(self.numbers).cast("I")
        at = bisect_left(numbers, number)
        return at if at < len(numbers) and numbers[at] == number else -1

    def weight(self, position: int) -> float:
        """Return the weight of the word in the tool at a position of this posting."""
        return float(memoryview(self.weights).cast("f")[position])

    def without(self, ranges: Sequence[range]) -> Posting | None:
        """Return a copy of this posting (the tools that contain one word) without the tools with numbers in `ranges`.

        `ranges` is ascending. None if no tool remains.
        """
        numbers = memoryview(self.numbers).cast("I")
        kept, begin = list[slice](), 0
        for each in ranges:
            kept.append(slice(begin * 4, bisect_left(numbers, each.start, begin) * 4))
            begin = bisect_left(numbers, each.stop, begin)
        kept.append(slice(begin * 4, len(self.numbers)))
        left = b"".join([self.numbers[part] for part in kept])
        if not left:
            return None
        return Posting(left, b"".join([self.weights[part] for part in kept]), self.max_weight, len(left) // 4)

    def with_entries(self, entries: Sequence[Any]) -> Posting:
        """Return a copy of this posting (the tools that contain one word) with more tools at its end.

        `entries` alternates the number of a tool and the weight of the word in it: number, weight, number, weight, …
        """
        weights = array("f", entries[1::2])
        return Posting(
            self.numbers + array("I", entries[0::2]).tobytes(),
            self.weights + weights.tobytes(),
            max(self.max_weight, max(weights)),
            self.count + len(weights),
        )


_NO_TOOLS: Final = Posting(b"", b"", 0.0, 0)


class Document(msgspec.Struct, frozen=True, gc=False):
    """One tool in the search index, with the stems of the words in its name."""

    tool: Tool
    name_stems: tuple[str, ...]  # the different words of its name


@dataclass(frozen=True, slots=True)
class Segment:
    """Search index of the tools of one server. They are numbered from `base`, in the order of the server's list."""

    server: str
    about: str  # description of the server
    base: int
    documents: tuple[Document, ...]
    words: tuple[str, ...]  # all different words of its tools
    name_stems: frozenset[str]  # of the server's name

    @property
    def numbers(self) -> range:
        """Return the numbers of this server's tools in the whole index."""
        return range(self.base, self.base + len(self.documents))


def definition_hash(tool: Tool) -> str:
    """Return the SHA-256 of a tool's definition. Vectors and earlier calls are stored under it."""
    return hashlib.sha256(msgspec.json.encode(tool.raw, order="deterministic")).hexdigest()


def build_segment(server: str, about: str, tools: Sequence[Tool], base: int, entries: Entries) -> Segment:
    """Return the search index of the tools of one server, numbered from `base`.

    For each word of a tool, the tool's number and the word's weight are appended to `entries[word]`.
    """
    documents = []
    server_stems, about_stems = _server_stems(server, about)
    words = set[str]()
    for number, tool in enumerate(tools, base):
        stems = _tool_stems(tool, server_stems, about_stems)
        documents.append(Document(tool, tuple(set(stems[0]))))
        weights = _weigh_words(stems)
        words.update(weights)
        for word, weight in weights.items():
            listed = entries[word]
            listed.append(number)
            listed.append(weight * (K1 + 1) / (weight + K1))
    return Segment(server, about, base, tuple(documents), tuple(words), frozenset(server_stems))


def _server_stems(server: str, about: str) -> tuple[Sequence[str], Sequence[str]]:
    """Return the stems of the words in a server's name and description, which add to the score of each of its tools."""
    return split_stems(split_name(server), FIELDS[1].max_words), split_stems(about, FIELDS[5].max_words)


def _tool_stems(tool: Tool, server_stems: Sequence[str], about_stems: Sequence[str]) -> tuple[Sequence[str], ...]:
    """Return the stems of the words in each searched part of a tool definition, in the order of `FIELDS`."""
    properties = tool.raw["inputSchema"].get("properties")
    parameters = properties if isinstance(properties, dict) else {}
    texts = [
        text
        for each in parameters.values()
        if isinstance(each, dict) and isinstance(text := each.get("description"), str)
    ]
    title, description = tool.title, tool.description
    return (
        split_stems(split_name(tool.name), FIELDS[0].max_words),
        server_stems,
        split_stems(description if title == tool.name else f"{title}. {description}", FIELDS[2].max_words),
        split_stems(split_name(" ".join(parameters)), FIELDS[3].max_words) if parameters else (),
        split_stems(" ".join(texts), FIELDS[4].max_words) if texts else (),
        about_stems,
    )


def _weigh_words(stems: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return the weight of each word in a tool definition, given the stems of each field.

    A word counts at most twice per field: repeating it more often gains nothing and makes the field longer.
    """
    weights = dict[str, float]()
    get = weights.get
    for (_, weight, usual, _), words in zip(FIELDS, stems, strict=True):
        if words:
            share = weight / (1 - B + B * len(words) / usual)
            left = set(words)
            if len(left) == len(words):
                for word in words:
                    weights[word] = get(word, 0.0) + share
                continue
            again = set[str]()
            for word in words:
                if word in left:
                    left.remove(word)
                    weights[word] = get(word, 0.0) + share
                elif word not in again:
                    again.add(word)
                    weights[word] += share
    return weights


class Index:
    """Immutable search index over the tools of all servers."""

    def __init__(self) -> None:
        self.segments: dict[str, Segment] = {}
        self.documents: dict[int, Document] = {}
        self.tools: tuple[Tool, ...] = ()  # in the order of `documents`
        self.numbers: dict[tuple[str, str], int] = {}  # (server, tool) → number
        self.end = 0  # all numbers are below
        self._postings: dict[str, Posting] = {}
        self._names: dict[str, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self.documents)

    def with_segments(self, added: Sequence[Segment], entries: Entries, removed: Iterable[str]) -> Index:
        """Return a new index with the segments in `added` (one per server) and without the servers in `removed`.

        `entries` are the numbers and weights that `build_segment` collected for all segments in `added`.
        """
        new = Index()
        new.segments, new.documents, new.numbers = dict(self.segments), dict(self.documents), dict(self.numbers)
        new._postings, new._names = dict(self._postings), dict(self._names)
        names = (*removed, *(segment.server for segment in added))
        new._remove([segment for name in names if (segment := new.segments.pop(name, None)) is not None])
        postings = new._postings
        for word, listed in entries.items():
            postings[word] = postings.get(word, _NO_TOOLS).with_entries(listed)
        for segment in added:
            new._add(segment)
        new.end = max((segment.numbers.stop for segment in new.segments.values()), default=0)
        new.tools = tuple([document.tool for document in new.documents.values()])
        return new

    def _add(self, segment: Segment) -> None:
        self.segments[segment.server] = segment
        names = self._names
        for number, document in enumerate(segment.documents, segment.base):
            tool = document.tool
            self.documents[number] = document
            self.numbers[tool.server, tool.name] = number
            for name in _name_keys(tool):
                names[name] = (*names[name], number) if name in names else (number,)

    def _remove(self, segments: Iterable[Segment]) -> None:
        ranges = dict[str, list[range]]()
        for segment in sorted(segments, key=lambda segment: segment.base):
            numbers = segment.numbers
            for word in segment.words:
                ranges.setdefault(word, []).append(numbers)
            for number, document in zip(numbers, segment.documents, strict=True):
                tool = document.tool
                del self.documents[number], self.numbers[tool.server, tool.name]
                for name in _name_keys(tool):
                    _put(self._names, name, tuple([each for each in self._names.get(name, ()) if each not in numbers]))
        for word, cut in ranges.items():
            _put(self._postings, word, self._postings[word].without(cut))

    def postings(self) -> Iterable[Posting]:
        """Return the postings of all words in the index; a posting lists the tools that contain one word."""
        return self._postings.values()

    def posting(self, word: str) -> Posting | None:
        """Return the posting of a word: the tools that contain it. None if no tool does."""
        return self._postings.get(word)

    def rarity(self, posting: Posting | None) -> float:
        """Return the weight of a word by its rarity: the fewer tools contain it, the higher."""
        having = posting.count if posting is not None else 0
        return math.log(1 + (len(self.documents) - having + 0.5) / (having + 0.5))

    def find_name(self, key: str) -> tuple[int, ...]:
        """Return the numbers of the tools with the name key `key` (`words.name_key`), with or without server."""
        return self._names.get(key, ())


def _name_keys(tool: Tool) -> tuple[str, str]:
    """Return the keys (`words.name_key`, equal for all spellings) of a tool's name, without and with its server."""
    name = name_key(tool.name)
    return name, name_key(tool.server) + name


def _put(mapping: dict[str, Any], key: str, value: Any) -> None:
    """Set `mapping[key]` to a value, or remove the key if the value is empty."""
    if value:
        mapping[key] = value
    else:
        mapping.pop(key, None)


def find_fields(index: Index, number: int) -> dict[str, tuple[str, ...]]:
    """Return the names of the fields (name, description …) in which a tool has a word, by word."""
    tool = index.documents[number].tool
    segment = index.segments[tool.server]
    found = dict[str, tuple[str, ...]]()
    for field, words in zip(FIELDS, _tool_stems(tool, *_server_stems(tool.server, segment.about)), strict=True):
        for word in set(words):
            found[word] = (*found.get(word, ()), field.name)
    return found
