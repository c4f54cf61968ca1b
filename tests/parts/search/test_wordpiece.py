"""Tests of the WordPiece tokenizer, alone and against the library `tokenizers`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from toolway.parts.search.wordpiece import WordPiece, split_words

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "list",
    "##ing",
    "##s",
    "create",
    "an",
    "issue",
    ".",
    ",",
    "中",
    "naive",
    "cafe",
    "#",
    "##1",
    "un",
    "##aff",
    "##able",
    "a",
]
DATA = Path(__file__).parents[3] / "bench" / "search" / "data"
SMALL = WordPiece({word: number for number, word in enumerate(WORDS)})


def tokens(text: str, limit: int = 32) -> list[str]:
    return [WORDS[number] for number in SMALL.encode(text, limit)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Listing", "[CLS] list ##ing [SEP]"),
        ("create an issue.", "[CLS] create an issue . [SEP]"),
        ("unaffable", "[CLS] un ##aff ##able [SEP]"),
        ("listx", "[CLS] [UNK] [SEP]"),
        ("NAÏVE café", "[CLS] naive cafe [SEP]"),
        ("中中", "[CLS] 中 中 [SEP]"),
        ("a\u200b\tlist\r\nlist\ufffd", "[CLS] a list list [SEP]"),
        ("", "[CLS] [SEP]"),
        ("list" * 30, "[CLS] [UNK] [SEP]"),
    ],
)
def test_text_is_split_into_pieces(text, expected):
    assert " ".join(tokens(text)) == expected


def test_long_text_is_cut_and_keeps_end_token():
    assert tokens("list " * 100, 5) == ["[CLS]", "list", "list", "list", "[SEP]"]


def test_ascii_text_is_split_like_any_other():
    text = "".join(map(chr, range(128)))
    assert list(split_words(text)) == list(split_words(text + "\ue000"))


def test_tokens_equal_those_of_the_library():
    library = pytest.importorskip("tokenizers", reason="the library `tokenizers` is not installed: not compared")
    if not DATA.is_dir():
        pytest.skip("the data sets are not here: not compared")
    texts = [
        *_data_texts(),
        "naïve café ÜBER straße",
        "日本語 漢字",
        "emoji 😀",
        "¿qué? «x» – —",
        "ΑΣ ǅ",
        "हिन्दी",
        "한국어",
    ]
    numbers = {word: number for number, word in enumerate(_model_vocabulary() or _make_vocabulary(texts))}
    ours, theirs = WordPiece(numbers), library.Tokenizer(library.models.WordPiece(numbers, unk_token="[UNK]"))
    theirs.normalizer = library.normalizers.BertNormalizer()
    theirs.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    differ = [text for text in texts if ours.encode(text, 1_000_000)[1:-1] != theirs.encode(text).ids]
    assert differ == []
    assert len(texts) > 2_000


def _model_vocabulary() -> list[str]:
    """Return the vocabulary of MiniLM if `make search-score ARGS=model` made it on this machine."""
    path = Path(__file__).parents[3] / "packages/toolway-search-minilm/src/toolway_search_minilm/vocab.txt"
    return path.read_text("utf-8").rstrip("\n").split("\n") if path.exists() else []


def _make_vocabulary(texts: list[str]) -> list[str]:
    """Return a vocabulary of the words that occur often, and of pieces that cut the others."""
    counts = Counter(word for text in texts for word in split_words(text))
    words = [word for word, count in counts.items() if count >= 5 and len(word) <= 100]
    ends = [f"##{word[at:]}" for word in words for at in range(max(1, len(word) - 4), len(word))]
    letters = sorted({letter for word in counts for letter in word})[::2]
    return list(dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words, *ends, *letters]))


def _data_texts() -> list[str]:
    """Return every eighth text of the data sets of the search score."""
    texts: list[str] = []

    def collect(value: object) -> None:
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, dict | list):
            for each in value.values() if isinstance(value, dict) else value:
                collect(each)

    for path in sorted(DATA.glob("*.json")):
        collect(json.loads(path.read_text("utf-8")))
    return sorted(set(texts))[::8]
