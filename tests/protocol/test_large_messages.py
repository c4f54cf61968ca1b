from __future__ import annotations

import json
import random
from typing import Any

import pytest

from toolway.protocol import large_messages


def pause() -> None:
    """No one else is there."""


def some(dice: random.Random, depth: int) -> Any:
    kind = dice.randrange(8 if depth else 5)
    if kind < 5:
        return (dice.randrange(10**6), 'te"xt, [{:\\ é', None, True, 1.5e10)[kind]
    values = [some(dice, depth - 1) for _ in range(dice.randrange(8))]
    return values if kind == 5 else {f'k"{number}': value for number, value in enumerate(values)}


@pytest.mark.parametrize("piece", [1, 7, 64, 100_000])
@pytest.mark.parametrize("spaces", [None, 1])
def test_chunk_size_does_not_matter(piece: int, spaces: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_messages, "CHUNK_BYTES", piece)
    dice = random.Random(1)
    for _ in range(200):
        value = [some(dice, 5), {"a": some(dice, 5)}]
        assert large_messages.decode_in_chunks(json.dumps(value, indent=spaces).encode(), 20, pause) == value


@pytest.mark.parametrize(
    "text", ["[1,2", '{"a":1,}', "[1 2]", '{"a":[NaN]}', '{"a":"\\ud800"}', '["a" "b"]', "[1]]", "[01]"]
)
def test_invalid_json_is_rejected_in_chunks(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_messages, "CHUNK_BYTES", 1)
    with pytest.raises(ValueError):
        large_messages.decode_in_chunks(text.encode(), 20, pause)


def test_deep_nesting_raises() -> None:
    text = b"[" * 100_000 + b"1" + b"]" * 100_000
    with pytest.raises((ValueError, RecursionError)):
        large_messages.decode_in_chunks(text, 65, pause)
