"""Scores of tools by the words of one query. No I/O.

`add_up` is the definition: the sum of the weights of all words, each times its factor. If the words have many tools,
`best_by_words` finds the best tools without adding up all:

1. The words that few tools have are added up.
2. A word that many tools have is one large integer with 32 bits for each tool: its weight there, rounded up. One
   multiplication and one addition add the word to the bounds of all tools, without a loop in Python.
3. The bounds are only a little higher than the scores. Tools whose bound is too low for the best ones are left out.
4. The exact scores of the rest are added up.
"""

from __future__ import annotations

import heapq
import sys
import threading
from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple

from toolway.search.index import Index, Posting

MIN_ENTRIES: Final = 500  # tools of all words of a query; below, they are just added up
FREQUENT: Final = 64  # a word is frequent if one of this many tools has it
FEW: Final = 4  # times the number of wanted tools: so few visible tools are just added up
LEVELS: Final = 1000  # of a weight of 1 in a bound
MAX_BOUND: Final = 2**32 - 1
ROUNDING: Final = 2  # more than the rounding of floats adds to a bound
ROOM: Final = 1024  # numbers of tools are rounded up to a multiple of this, so a few new tools change no size
MAX_WEIGHT_BYTES: Final = 16 * 2**20  # of the frequent words that are kept
MAX_MASKS: Final = 64  # sets of visible tools that are kept
_HIGH_BYTE: Final = 3 if sys.byteorder == "little" else 0  # of a bound in memory
_REACHED: Final = bytes(256) + b"\1" * 256  # from 256 - n on: 1 for each byte that is at least n
_BYTES: Final = bytes(range(256))


class QueryPart(NamedTuple):
    """One word of a query: the factor of its weights, and the posting that lists the tools which contain it."""

    factor: float
    posting: Posting


class WordWeights(NamedTuple):
    """Weights of one frequent word, by tool number, in two forms.

    `weights` are exact. `bounds` is one integer with 32 bits per tool, each the weight rounded up.
    """

    posting: Posting
    weights: array[float]
    bounds: int


class WeightCache:
    """Cache, for several searches, of the weights of frequent words and of the masks of visible tools. Thread-safe."""

    def __init__(self) -> None:
        self._words: dict[int, WordWeights] = {}  # by id of the posting, which is kept, so the id stays its own
        self._masks: dict[int, tuple[Set[int], int]] = {}  # by id of the set, which is kept as well
        self._lock = threading.Lock()

    def weights(self, posting: Posting, end: int) -> WordWeights:
        """Return the weight of a word in every tool, as an array that is indexed by tool number (below `end`)."""
        known = self._words.get(id(posting))
        if known is not None and len(known.weights) >= end:
            return known
        weights, bounds = array("f", bytes(4 * _size(end))), array("I", bytes(4 * _size(end)))
        for number, weight in posting.pairs():
            weights[number] = weight
            bounds[number] = int(weight * LEVELS) + 1
        known = WordWeights(posting, weights, int.from_bytes(_to_native(bounds).tobytes(), "little"))
        _keep(self._words, id(posting), known, _max_words(end), self._lock)
        return known

    def prepare(self, index: Index) -> None:
        """Fill the cache with the weights of the most frequent words of `index`, before a search needs them."""
        frequent = [each for each in index.postings() if each.count > index.end // FREQUENT]
        for posting in heapq.nlargest(_max_words(index.end), frequent, key=attrgetter("count")):
            self.weights(posting, index.end)

    def mask(self, visible: Set[int], end: int) -> int:
        """Return a large integer with one byte per tool number: 255 if the tool is visible, else 0."""
        known = self._masks.get(id(visible))
        if known is not None:
            return known[1]
        shown = bytearray(end)
        for number in visible:
            shown[number] = 255
        mask = int.from_bytes(shown, "little")
        if isinstance(visible, frozenset):
            _keep(self._masks, id(visible), (visible, mask), MAX_MASKS, self._lock)
        return mask


def add_up(parts: Iterable[QueryPart], learned: Mapping[int, float]) -> dict[int, float]:
    """Return the score of each tool that contains one of the words, by tool number.

    The sum of a tool begins with its score in `learned` (from earlier calls), if it has one.
    """
    scores = dict(learned)
    get = scores.get
    for factor, posting in parts:
        for number, weight in posting.pairs():
            scores[number] = get(number, 0.0) + factor * weight
    return scores


def best_by_words(
    end: int,
    parts: Sequence[QueryPart],
    count: int,
    learned: Mapping[int, float],
    visible: Set[int] | None,
    named: Set[int],
    cache: WeightCache,
) -> dict[int, float]:
    """Return exact scores (see `add_up`) of some tools: at least the best `count` visible ones and those in `named`.

    All tool numbers are below `end`. `parts` is sorted: the words with the fewest tools are first.
    """
    sizes = [posting.count for _, posting in parts]
    if sum(sizes) < max(MIN_ENTRIES, end // 8):
        return add_up(parts, learned)
    first = bisect_right(sizes, end // FREQUENT)
    scores, frequent = add_up(parts[:first], learned), parts[first:]
    if not frequent:
        return scores
    words = [cache.weights(posting, end) for _, posting in frequent]
    if visible is not None and len(visible) <= FEW * count:
        numbers: Collection[int] = visible
    else:
        mask = cache.mask(visible, end) if visible is not None else None
        numbers = _find_candidates(scores, frequent, words, count, mask, _size(end)) | named
    return _add_frequent(scores, frequent, words, numbers)


def _find_candidates(
    scores: Mapping[int, float],
    frequent: Sequence[QueryPart],
    words: Sequence[WordWeights],
    count: int,
    mask: int | None,
    size: int,
) -> set[int]:
    """Return the numbers of tools among which the best `count` visible ones are, without computing all exact scores.

    `scores` are the scores by rare words only; `frequent` and `words` are the other words. `mask` has a byte 255 for
    each visible tool; None means that all tools are visible.
    """
    highest = [int(posting.max_weight * LEVELS) + 1 for _, posting in frequent]
    most = sum([part.factor * level for part, level in zip(frequent, highest, strict=True)])
    most += max(scores.values(), default=0.0) * LEVELS
    scale = (MAX_BOUND - sum(highest) - ROUNDING) / most  # so every bound fits in 32 bits
    total, slack = 0, ROUNDING
    for (factor, _), word, level in zip(frequent, words, highest, strict=True):
        scaled = int(factor * scale) + 1
        slack += scaled + level  # the most by which this word can raise a bound above the score
        total += scaled * word.bounds
    bounds = _to_native(array("I", total.to_bytes(4 * size, "little")))
    scale *= LEVELS
    for number, score in scores.items():
        bounds[number] += int(score * scale) + 1
    return _select(bounds, count, slack, mask)


def _select(bounds: array[int], count: int, slack: int, mask: int | None) -> set[int]:
    """Return the tools whose upper bound is above 0 and at most `slack` below the `count`-th highest bound."""
    high = bounds.tobytes()[_HIGH_BYTE::4]
    if mask is not None:
        high = (int.from_bytes(high, "little") & mask).to_bytes(len(high), "little")
    level, left, above = 0, high, 256  # `left` are the bytes of the tools that reach `level`: at least `count`
    while above - level > 1:
        middle = (level + above) // 2
        reaching = left.translate(None, _BYTES[:middle])
        if len(reaching) >= count:
            level, left = middle, reaching
        else:
            above = middle
    reached = _places(high, level, mask)
    best = sorted([bounds[number] for number in reached])
    line = max(1, best[-count] - slack) if len(best) >= count else 1
    if line >> 24 < level:
        reached = _places(high, line >> 24, mask)
    return {number for number in reached if bounds[number] >= line}


def _reach(high: bytes, level: int) -> bytes:
    """Return a flag for each tool: 1 if its byte in `high`, the top byte of its bound, is at least `level`; else 0."""
    return high.translate(_REACHED[256 - level : 512 - level])


def _places(high: bytes, level: int, mask: int | None) -> list[int]:
    """Return the numbers of the visible tools whose byte in `high`, the top byte of the bound, is at least `level`."""
    if level:
        flags = _reach(high, level)
    elif mask is not None:
        flags = _reach(mask.to_bytes(len(high), "little"), 1)
    else:
        return list(range(len(high)))
    places = []
    find = flags.find
    place = find(1)
    while place >= 0:
        places.append(place)
        place = find(1, place + 1)
    return places


def _add_frequent(
    scores: Mapping[int, float],
    frequent: Sequence[QueryPart],
    words: Sequence[WordWeights],
    chosen: Iterable[int],
) -> dict[int, float]:
    """Return the exact scores of the tools `chosen`: scores by rare words, plus the weights of the frequent words."""
    numbers = list(chosen)
    totals = [scores.get(number, 0.0) for number in numbers]
    if len(numbers) > 1:  # with one key, an `itemgetter` returns no tuple
        pick = itemgetter(*numbers)
        for (factor, _), word in zip(frequent, words, strict=True):
            totals = [total + factor * weight for total, weight in zip(totals, pick(word.weights), strict=True)]
    else:
        for number in numbers:
            for (factor, _), word in zip(frequent, words, strict=True):
                totals[0] += factor * word.weights[number]
    return {number: score for number, score in zip(numbers, totals, strict=True) if score}


def _max_words(end: int) -> int:
    """Return how many words the cache may hold, if all tool numbers are below `end`, within its memory limit."""
    return int(MAX_WEIGHT_BYTES // (8 * max(1, _size(end))))


def _size(end: int) -> int:
    """Return the length of an array that is indexed by tool number: `end`, rounded up to leave room for more tools."""
    return -(-end // ROOM) * ROOM


def _to_native(values: array[int]) -> array[int]:
    """Convert 32-bit values in place between little-endian and this machine's byte order; return them."""
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _keep(cache: dict[int, Any], key: int, value: Any, most: int, lock: threading.Lock) -> None:
    """Add a value to a cache of at most `most` values; if the cache is full, the oldest value is removed."""
    with lock:
        while len(cache) >= max(1, most):
            del cache[next(iter(cache))]
        cache[key] = value
