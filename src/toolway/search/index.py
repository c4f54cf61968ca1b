"""Inverted index of tool definitions: one segment per server. Pure.

A segment depends only on the definitions of its server: lengths are normalised by constants, not by averages over all
tools. So a server that is added or changed moves other tools only by the rarity of words. An `Index` is immutable;
`with_segments` returns a new one that shares what did not change, so a search in a thread never sees half a change.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from toolway.catalog.catalog import Tool
from toolway.search.words import name_key, split_name, split_stems

K1: Final = 1.2  # how soon further hits of the same word stop to count
MAX_REPEATS: Final = 2  # of a word in one field that count
B: Final = 0.5  # how much a long field lowers the weight of its words


class Field(NamedTuple):
    """Searched part of a tool definition, such as its name: weight, usual number of words, and words read at most."""

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


class Posting(NamedTuple):
    """The tools that have a word: their numbers (ascending), the weight in each, and the fields as a bit set."""

    numbers: array[int]
    weights: array[float]
    fields: array[int]

    def position(self, number: int) -> int:
        """Return the position of a tool, or -1 if it does not have the word."""
        at = bisect_left(self.numbers, number)
        return at if at < len(self.numbers) and self.numbers[at] == number else -1


class PackedPosting(msgspec.Struct, frozen=True, gc=False):
    """Tools of one server that have a word, stored as bytes, which the garbage collector does not traverse.

    An index of 50,000 tools has a million of these. As arrays, a collection of all objects would hold the event loop.
    """

    numbers: bytes
    weights: bytes
    fields: bytes


class Document(msgspec.Struct, frozen=True, gc=False):
    """One tool in the search index."""

    tool: Tool
    names: tuple[str, str]  # what all spellings of its name have in common, without and with its server
    name_words: int  # number of different words in its name, at least 1


@dataclass(frozen=True, slots=True)
class Segment:
    """The index of one server. Its tools are numbered from `base`, in the order of its list."""

    server: str
    about: str  # description of the server
    base: int
    documents: tuple[Document, ...]
    postings: Mapping[str, PackedPosting]
    name_stems: frozenset[str]  # of the server's name


def tool_texts(tool: Tool, about: str = "") -> tuple[str, ...]:
    """Return the texts of a tool that are searched, one for each of `FIELDS`."""
    properties = tool.raw["inputSchema"].get("properties")
    parameters = properties if isinstance(properties, dict) else {}
    texts = (each.get("description") for each in parameters.values() if isinstance(each, dict))
    title = tool.title
    return (
        split_name(tool.name),
        split_name(tool.server),
        tool.description if title == tool.name else f"{title}. {tool.description}",
        " ".join(map(split_name, parameters)),
        " ".join(text for text in texts if isinstance(text, str)),
        about,
    )


def definition_hash(tool: Tool) -> str:
    """Return the SHA-256 of a tool's definition. Vectors and earlier calls are stored under it."""
    return hashlib.sha256(msgspec.json.encode(tool.raw, order="deterministic")).hexdigest()


def build_segment(server: str, about: str, tools: Sequence[Tool], base: int) -> Segment:
    """Build the search index of one server's tools."""
    lists: dict[str, tuple[list[int], list[float], list[int]]] = {}
    documents = []
    for number, tool in enumerate(tools, base):
        keys = (name_key(tool.name), name_key(tool.server + tool.name))
        documents.append(Document(tool, keys, len(set(split_stems(split_name(tool.name), FIELDS[0].max_words))) or 1))
        for word, (weight, fields) in _weigh_words(tool_texts(tool, about)).items():
            entry = lists.get(word)
            if entry is None:
                entry = lists[word] = ([], [], [])
            entry[0].append(number)
            entry[1].append(weight * (K1 + 1) / (weight + K1))
            entry[2].append(fields)
    postings = {
        word: PackedPosting(array("I", numbers).tobytes(), array("f", weights).tobytes(), bytes(fields))
        for word, (numbers, weights, fields) in lists.items()
    }
    name_stems = frozenset(split_stems(split_name(server), FIELDS[1].max_words))
    return Segment(server, about, base, tuple(documents), postings, name_stems)


def _weigh_words(texts: Sequence[str]) -> dict[str, tuple[float, int]]:
    """Return the weight and the fields of each word of a definition.

    A word counts at most twice per field: repeating it more often gains nothing and makes the field longer.
    """
    weighed: dict[str, tuple[float, int]] = {}
    for bit, (field, text) in enumerate(zip(FIELDS, texts, strict=True)):
        if not text:
            continue
        words = split_stems(text, field.max_words)
        share = field.weight / (1 - B + B * len(words) / field.usual_words)
        for word, count in Counter(words).items():
            weight, fields = weighed.get(word, (0.0, 0))
            weighed[word] = (weight + share * min(count, MAX_REPEATS), fields | 1 << bit)
    return weighed


class Index:
    """Immutable search index over the tools of all servers."""

    def __init__(self) -> None:
        self.segments: dict[str, Segment] = {}
        self.documents: dict[int, Document] = {}
        self.tools: tuple[Tool, ...] = ()  # in the order of `documents`
        self.numbers: dict[tuple[str, str], int] = {}  # (server, tool) → number
        self._postings: dict[str, tuple[PackedPosting, ...]] = {}
        self._merged: dict[str, Posting] = {}  # of words that were searched; a search may add to it
        self._names: dict[str, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self.documents)

    def with_segments(self, added: Iterable[Segment], removed: Iterable[str]) -> Index:
        """Return an index in which segments replace those of the same servers, and without the servers `removed`."""
        new = Index()
        new.segments, new.documents = dict(self.segments), dict(self.documents)
        new._postings, new._merged, new._names = dict(self._postings), dict(self._merged), dict(self._names)
        added = list(added)
        for server in (*removed, *(segment.server for segment in added)):
            old = new.segments.pop(server, None)
            if old is not None:
                new._remove(old)
        for segment in added:
            new._add(segment)
        new.tools = tuple([document.tool for document in new.documents.values()])
        new.numbers = {(tool.server, tool.name): number for number, tool in zip(new.documents, new.tools, strict=True)}
        return new

    def _add(self, segment: Segment) -> None:
        self.segments[segment.server] = segment
        for number, document in enumerate(segment.documents, segment.base):
            self.documents[number] = document
            for name in document.names:
                self._names[name] = (*self._names.get(name, ()), number)
        for word, posting in segment.postings.items():
            self._postings[word] = (*self._postings.get(word, ()), posting)
            self._merged.pop(word, None)

    def _remove(self, segment: Segment) -> None:
        for number, document in enumerate(segment.documents, segment.base):
            del self.documents[number]
            for name in document.names:
                _put(self._names, name, tuple(each for each in self._names.get(name, ()) if each != number))
        for word, posting in segment.postings.items():
            _put(self._postings, word, tuple(each for each in self._postings[word] if each is not posting))
            self._merged.pop(word, None)

    def posting(self, word: str) -> Posting | None:
        """Return the tools that have a word, or None if there are none."""
        found = self._merged.get(word)
        if found is None:
            parts = self._postings.get(word)
            if parts is None:
                return None
            found = Posting(array("I"), array("f"), array("B"))
            for part in parts:  # segments are numbered in the order in which they were added
                found.numbers.frombytes(part.numbers)
                found.weights.frombytes(part.weights)
                found.fields.frombytes(part.fields)
            self._merged[word] = found
        return found

    def rarity(self, posting: Posting | None) -> float:
        """Return the weight of a word by the number of tools that have it: the fewer, the higher."""
        having = len(posting.numbers) if posting is not None else 0
        return math.log(1 + (len(self.documents) - having + 0.5) / (having + 0.5))

    def find_name(self, key: str) -> tuple[int, ...]:
        """Return the numbers of the tools that are called `key` (see `words.name_key`), with or without server."""
        return self._names.get(key, ())


def _put(mapping: dict[str, Any], key: str, value: tuple[Any, ...]) -> None:
    if value:
        mapping[key] = value
    else:
        mapping.pop(key, None)


def field_names(bits: int) -> tuple[str, ...]:
    """Return the names of the fields in a bit set of a posting."""
    return tuple(field.name for bit, field in enumerate(FIELDS) if bits >> bit & 1)
