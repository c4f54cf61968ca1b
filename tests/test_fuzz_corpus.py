"""Every input of the fuzz corpus, without the fuzzer: refused in the documented way, in time, and in bounded memory."""

from __future__ import annotations

import importlib
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from toolway.config import formats
from toolway.upstream.transports.stdio.framing import Framer

FUZZ = Path(__file__).resolve().parent.parent / "fuzz"
TARGETS = sorted(path.stem.removeprefix("fuzz_") for path in FUZZ.glob("fuzz_*.py"))
SEEDS = [path for target in TARGETS for path in sorted((FUZZ / "corpus" / target).iterdir())]

KNOWN = {
    "config/long-number": "a duration of 400 digits is no float: OverflowError",
    "config/escaped-quotes": "a string that is not closed is read again from every quote in it",
}


def named(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def seeds() -> list[object]:
    known = {name: pytest.mark.xfail(strict=True, reason=reason) for name, reason in KNOWN.items()}
    return [pytest.param(path, id=named(path), marks=known.get(named(path), ())) for path in SEEDS]


@pytest.fixture
def guarded_check(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Callable[[bytes], None]]:
    monkeypatch.syspath_prepend(str(FUZZ))

    def find(target: str) -> Callable[[bytes], None]:
        harness = importlib.import_module("harness")
        check: Callable[[bytes], None] = harness.guarded(importlib.import_module(f"fuzz_{target}").check)
        return check

    return find


def test_every_target_has_a_small_corpus() -> None:
    assert TARGETS == ["config", "envelope", "framing", "headers", "sse"]
    for target in TARGETS:
        sizes = [path.stat().st_size for path in SEEDS if path.parent.name == target]
        assert 10 <= len(sizes) <= 64
        assert max(sizes) <= 8192


@pytest.mark.parametrize("path", seeds())
def test_an_input_of_the_corpus_is_handled(path: Path, guarded_check) -> None:
    guarded_check(path.parent.name)(path.read_bytes())


# -- inputs that are too large to be kept as files ---------------------------------------------------------------------


@pytest.mark.xfail(strict=True, reason="for each key the lines before it are counted from the beginning")
def test_a_file_with_many_keys_is_read_in_time_that_grows_with_it() -> None:
    text = '{"mcpServers": {' + ",\n".join(f'"a{n}": 1' for n in range(40_000)) + "}}"
    began = time.process_time()
    assert len(formats.parse(text, "mcp.json", {}).problems) == 40_000
    assert time.process_time() - began < 3.0


@pytest.mark.xfail(strict=True, reason="every piece of an unfinished line is kept as an object of its own")
def test_a_line_that_comes_in_small_pieces_takes_no_more_memory_than_a_few_times_its_length() -> None:
    framer, size = Framer(1 << 20), 1 << 20
    tracemalloc.start()
    for n in range(size // 2 - 1):
        framer.feed(b"%c%c" % (65 + n % 26, 66 + n % 25))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6 * size


# -- the limits --------------------------------------------------------------------------------------------------------


def test_what_is_slow_is_noticed(guarded_check, monkeypatch: pytest.MonkeyPatch) -> None:
    check = guarded_check("framing")
    harness = importlib.import_module("harness")
    monkeypatch.setattr(harness, "SECONDS", -1.0)
    with pytest.raises(harness.TooSlow):
        check(b"\xff\x01line\n")


def test_what_is_large_is_noticed(guarded_check, monkeypatch: pytest.MonkeyPatch) -> None:
    check = guarded_check("framing")
    harness = importlib.import_module("harness")
    monkeypatch.setattr(harness, "BYTES", -1)
    with pytest.raises(harness.TooLarge):
        check(b"\xff\x01line\n")
