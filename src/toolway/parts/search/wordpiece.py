"""WordPiece, the tokenizer of BERT models: turns text into vocabulary numbers.

>>> WordPiece({"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "list": 3, "##ing": 4}).encode("Listing", limit=8)
[1, 3, 4, 2]
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from typing import Final

_MAX_WORD: Final = 100  # a longer word is unknown, as in BERT
_MAX_CACHED: Final = 20_000
_CONTROL: Final = frozenset({"Cc", "Cf", "Co", "Cs"})
_CHINESE: Final = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


class WordPiece:
    """A WordPiece tokenizer for lower-case text, with one vocabulary."""

    def __init__(self, vocabulary: Mapping[str, int]) -> None:
        self._vocabulary = vocabulary
        self._unknown, self._begin, self._end = (vocabulary[name] for name in ("[UNK]", "[CLS]", "[SEP]"))
        self._known: dict[str, list[int]] = {}

    def encode(self, text: str, limit: int) -> list[int]:
        """Return at most `limit` token numbers for a text, including the start and end tokens."""
        tokens = [self._begin]
        for word in split_words(text):
            tokens += self._known.get(word) or self._pieces(word)
            if len(tokens) >= limit:
                break
        return [*tokens[: limit - 1], self._end]

    def _pieces(self, word: str) -> list[int]:
        """Return a word's token numbers: from left to right, the longest pieces that are in the vocabulary.

        A word that cannot be split like this is one unknown token.
        """
        pieces: list[int] = []
        begin = 0 if len(word) <= _MAX_WORD else len(word) + 1
        while begin < len(word):
            for end in range(len(word), begin, -1):
                piece = self._vocabulary.get(word[begin:end] if begin == 0 else f"##{word[begin:end]}")
                if piece is not None:
                    pieces.append(piece)
                    begin = end
                    break
            else:
                begin = len(word) + 1
        found = pieces if begin == len(word) else [self._unknown]
        if len(self._known) < _MAX_CACHED and len(word) <= _MAX_WORD:
            self._known[word] = found
        return found


def split_words(text: str) -> Iterator[str]:
    """Split text into lower-case words without accents; punctuation and Chinese characters are words."""
    if text.isascii():
        spaced = "".join(_ASCII[ord(each)] for each in text)
    else:
        plain = "".join(_spaced(each) for each in text)
        plain = "".join(each for each in unicodedata.normalize("NFD", plain) if unicodedata.category(each) != "Mn")
        spaced = "".join(f" {each} " if _is_punctuation(each) else each.lower() for each in plain)
    yield from spaced.split()


def _spaced(character: str) -> str:
    """Return what replaces a character before a text is split into words.

    This is the character itself, the character between spaces, a space, or "".
    """
    if character in "\t\n\r" or unicodedata.category(character) == "Zs":
        return " "
    if character == "\ufffd" or unicodedata.category(character) in _CONTROL:
        return ""
    code = ord(character)
    return f" {character} " if any(begin <= code <= end for begin, end in _CHINESE) else character


def _is_punctuation(character: str) -> bool:
    code = ord(character)
    if code < 128:
        return 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126
    return unicodedata.category(character).startswith("P")


_ASCII: Final = [
    f" {each} " if _is_punctuation(each) else _spaced(each).lower() for each in (chr(code) for code in range(128))
]
