"""Words of a text for the search: splitting, stop words and stems. No I/O.

A word is a run of letters and digits; Chinese and Japanese text is split into characters. English endings are cut off
(`creating`, `creates` and `create` are one word). Invisible characters are removed before anything else, so a
definition cannot hide a word inside another one.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

MAX_WORD_CHARS: Final = 40  # longer runs are cut: they are data, not words
MAX_KNOWN_WORDS: Final = 32_768  # words whose stems are kept
_TO_WORDS: Final = "".join(each.lower() if each.isalnum() else " " for each in map(chr, range(128))).encode().ljust(256)
_IDEOGRAPH: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_ANY_WORD: Final = re.compile(rf"[{_IDEOGRAPH}]|(?:(?![{_IDEOGRAPH}])[^\W_])+")
_MARKS: Final = re.compile("[\u0300-\u036f]+")  # accents, after decomposition
_INVISIBLE: Final = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SEPARATORS: Final = str.maketrans("_-./", "    ")

_STOP_WORDS: Final = """
a an and are as at be by for from has have i if in into is it its me my of on or our please that the
their them then there this to us was we what when where which who will with you your can could would
should do does want need using use via all any some each how about also just like help
"""
STOP_WORDS: Final = frozenset(_STOP_WORDS.split())

_ENDINGS: Final = (
    ("ies", "y"), ("sses", "ss"), ("ations", "at"), ("ation", "at"), ("ating", "at"), ("ated", "at"), ("ates", "at"),
    ("ator", "at"), ("ings", ""), ("ing", ""), ("edly", ""), ("ed", ""), ("ers", ""), ("er", ""), ("ors", "or"),
    ("ments", ""), ("ment", ""), ("es", "e"), ("s", ""),
)  # fmt: skip
_ENDINGS_BY_LETTER: Final = {last: [each for each in _ENDINGS if each[0][-1] == last] for last in "sngdryt"}


def _cut_ending(word: str) -> str:
    """Return a word without its English ending. Short words and words of other scripts stay unchanged."""
    if len(word) <= 3 or not word.isascii():
        return word
    for ending, replacement in _ENDINGS_BY_LETTER.get(word[-1], ()):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            if ending == "s" and word.endswith(("ss", "us", "is")):
                continue
            word = word[: -len(ending)] + replacement
            break
    if len(word) > 4 and word.endswith("e"):
        word = word[:-1]
    if len(word) > 4 and word[-1] == word[-2] and word[-1] not in "lsz":
        word = word[:-1]
    if len(word) > 3 and word.endswith("y"):
        word = word[:-1] + "i"
    return word


class _Stems(dict[str, str]):
    """Cache of stems by word, filled on first use of a word. The stem of a stop word is ""."""

    def __missing__(self, word: str) -> str:
        found = "" if word in STOP_WORDS else _cut_ending(word[:MAX_WORD_CHARS])
        if len(word) <= MAX_WORD_CHARS:
            if len(self) >= MAX_KNOWN_WORDS:
                self.clear()
            self[word] = found
        return found


_STEMS: Final = _Stems()


def stem(word: str) -> str:
    """Return the stem of a word, which all its forms share: the word without its ending, cut to a maximum length."""
    return _STEMS[word] or _cut_ending(word)


def _find_words(text: str) -> list[str]:
    """Return all words of a text in lower case, with stop words."""
    if text.isascii():
        return text.encode().translate(_TO_WORDS).decode().split()  # a quarter of a regular expression's time
    text = _INVISIBLE.sub("", text)
    plain = _MARKS.sub("", unicodedata.normalize("NFKD", text.lower()))
    return _ANY_WORD.findall(unicodedata.normalize("NFC", plain))


def split_words(text: str, limit: int) -> list[str]:
    """Return the first `limit` words of a text in lower case, without stop words, in the order of the text."""
    return [word[:MAX_WORD_CHARS] for word in _find_words(text) if word not in STOP_WORDS][:limit]


def split_stems(text: str, limit: int) -> list[str]:
    """Return the stems of the first `limit` words of a text."""
    return [*filter(None, map(_STEMS.__getitem__, _find_words(text)))][:limit]


def split_name(name: str) -> str:
    """Return the parts of an identifier, separated by spaces: `createIssue` and `create_issue` are `create issue`."""
    return (name if name.islower() else _CAMEL.sub(" ", name)).translate(_SEPARATORS)


def name_key(name: str) -> str:
    """Return the key of a name, which is equal for all its spellings: its letters and digits in lower case."""
    if name.isascii():
        return "".join(_find_words(name))
    return "".join(character for character in _INVISIBLE.sub("", name).lower() if character.isalnum())
