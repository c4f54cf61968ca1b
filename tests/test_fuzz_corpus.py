"""Every input of the fuzz corpus, without the fuzzer: refused in the documented way, in time, and in bounded memory."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest

from toolway.config import loader
from toolway.errors import ConfigError
from toolway.protocol import jsonrpc
from toolway.upstream.transports.sse_parser import SSEParser
from toolway.upstream.transports.stdio_pipes import Framer

FUZZ = Path(__file__).resolve().parent.parent / "fuzz"
TARGETS = sorted(path.stem.removeprefix("fuzz_") for path in FUZZ.glob("fuzz_*.py"))
SEEDS = [path for target in TARGETS for path in sorted((FUZZ / "corpus" / target).iterdir())]

Guarded = Callable[[str], Callable[[bytes], None]]


def named(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FUZZ))
    return importlib.import_module("harness")


@pytest.fixture
def guarded_check(harness: ModuleType) -> Guarded:
    def find(target: str) -> Callable[[bytes], None]:
        module = importlib.import_module(f"fuzz_{target}")
        check: Callable[[bytes], None] = harness.guarded(module.check, getattr(module, "grown", None))
        return check

    return find


def test_every_target_has_a_small_corpus() -> None:
    assert TARGETS == ["config", "envelope", "framing", "headers", "openapi", "sse"]
    for target in TARGETS:
        sizes = [path.stat().st_size for path in SEEDS if path.parent.name == target]
        assert 10 <= len(sizes) <= 64
        assert max(sizes) <= 8192


@pytest.mark.parametrize("path", SEEDS, ids=named)
def test_corpus_input_is_handled(path: Path, guarded_check: Guarded) -> None:
    guarded_check(path.parent.name)(path.read_bytes())


# -- random changes of the corpus --------------------------------------------------------------------------------------


@pytest.fixture
def changes(harness: ModuleType) -> ModuleType:
    return importlib.import_module("mutations")


@pytest.mark.parametrize("target", TARGETS)
def test_changed_inputs_are_handled(target: str, changes: ModuleType) -> None:
    check = importlib.import_module(f"fuzz_{target}").check
    for data in islice(changes.mutations(changes.read_corpus([FUZZ / "corpus" / target]), 1), 300):
        check(data)


def test_same_seed_yields_the_same_inputs(changes: ModuleType) -> None:
    corpus = changes.read_corpus([FUZZ / "corpus" / "config"])
    first, second, other = (list(islice(changes.mutations(corpus, seed), 500)) for seed in (1, 1, 2))
    assert first == second != other
    assert len(set(first)) > 400
    assert max(map(len, first)) <= changes.MAX_BYTES


def test_failing_input_is_kept(tmp_path: Path) -> None:
    (tmp_path / "fuzz_config.py").write_text("def check(data):\n    assert b'x' not in data\n")
    for name in ("mutations.py", "harness.py"):
        (tmp_path / name).write_text((FUZZ / name).read_text())
    (tmp_path / "corpus" / "config").mkdir(parents=True)
    (tmp_path / "corpus" / "config" / "one").write_bytes(b"wxyz")
    command = [
        sys.executable,
        str(tmp_path / "mutations.py"),
        "config",
        "--inputs=1000",
        f"--found={tmp_path / 'found'}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (kept,) = (tmp_path / "found").iterdir()
    assert b"x" in kept.read_bytes() and str(kept) in done.stderr


# -- inputs that are too large to be kept as files: for each, about how it looks with `size` bytes ---------------------


def many(one: str, size: int) -> str:
    """`one` again and again, each with a number in the place of `#`."""
    return "".join(one.replace("#", str(n)) for n in range(size // len(one)))


def servers(inside: str) -> str:
    return '{"mcpServers": {' + inside.rstrip(",\n") + "}}"


def server(inside: str) -> str:
    return servers('"a": {"command": "x", ' + inside.rstrip(",\n") + "}")


def deep(inside: str, levels: int = 200) -> str:
    return server('"k": ' + '{"k": ' * levels + "{" + inside.rstrip(",\n") + "}" + "}" * levels)


FILES: dict[str, Callable[[int], str]] = {
    "comments that are not closed": lambda size: "/*i " * (size // 4),
    "comments": lambda size: "/* */" * (size // 5) + servers(""),
    "one comment": lambda size: f"/*{'*' * size}*/" + servers(""),
    "a text that is not closed": lambda size: '{"a": "' + '\\"' * (size // 2),
    "spaces": lambda size: server('"k": [1' + " " * size + "]"),
    "servers": lambda size: servers(many('"a#": 1,\n', size)),
    "servers with a key that stands twice": lambda size: servers(many('"a#": {"b": 1, "b": 2},\n', size)),
    "servers that stand twice": lambda size: servers(many('"a#": 1, "a#": 2,\n', size)),
    "keys": lambda size: server(many('"k#": 1,\n', size)),
    "keys like ours": lambda size: server(many('"timeou#": 1,\n', size)),
    "keys far below": lambda size: deep(many('"k#": 1,\n', size)),
    "keys far below that stand twice": lambda size: deep(many('"k#": 1, "k#": 2,\n', size)),
    "names that must be changed": lambda size: servers(many('"A_#": {"command": "x"},\n', size)),
    "one long name": lambda size: servers(json.dumps("A" * size) + ": {}"),
    "problems of a long name": lambda size: servers(
        f'"{"A" * (size // 2)}": {{"command": "x", "args": ["{many("${V#}", size // 2)}"]}}'
    ),
    "variables": lambda size: server(f'"args": ["{many("${V#}", size)}"]'),
    "variables under a long key": lambda size: server(
        f'"env": {{"{"k" * (size // 2)}": "{many("${V#}", size // 2)}"}}'
    ),
    "defaults that are not closed": lambda size: server(f'"args": ["{"${V:-" * (size // 5)}"]'),
    "rules under a long name": lambda size: server(
        f'"tools": {{"{"t" * (size // 2)}": {{{many(chr(34) + "k#" + chr(34) + ": 1,", size // 2).rstrip(",")}}}}}'
    ),
    "a command line": lambda size: servers('"a": "' + "x" * size + '"'),
    "a duration": lambda size: server(f'"timeout": "{"9" * size}s"'),
    "a number": lambda size: server(f'"timeout": {"9" * min(size, 4000)}'),
}


def read(text: str) -> None:
    try:
        loader.parse_config(text, "mcp.json", {})
    except ConfigError:
        return


def traced_peak(run: Callable[[], object]) -> int:
    """Bytes held at the worst moment."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILES)
def test_file_parsing_time_is_linear(kind: str, harness: ModuleType) -> None:
    harness.check_growth(lambda size: read(FILES[kind](size)), 16 * 1024)


@pytest.mark.parametrize("kind", FILES)
def test_file_parsing_memory_is_linear(kind: str) -> None:
    text = FILES[kind](16 * 1024)
    assert traced_peak(lambda: read(text)) < 100 * len(text)


def framed(chunk: bytes, size: int) -> None:
    framer = Framer(size)
    for _ in range(size // len(chunk)):
        framer.feed(chunk)
    framer.feed(b"\n")


def streamed(chunk: bytes, size: int) -> None:
    stream = SSEParser(2 * size)
    for _ in range(size // len(chunk)):
        stream.feed(chunk)
    stream.feed(b"\n\n")


def parsed(frame: str) -> None:
    for parse in (jsonrpc.parse_message, jsonrpc.parse_in_slices):
        try:
            parse(frame.encode())
        except jsonrpc.InvalidMessage:
            continue


STREAMS: dict[str, Callable[[int], object]] = {
    "a line in small pieces": lambda size: framed(b"xy", size),
    "short lines": lambda size: framed(b"x\ny\n", size),
    "an event line in small pieces": lambda size: streamed(b"da", size),
    "an event of many lines": lambda size: streamed(b"data: x\r\n", size),
    "comments of a stream": lambda size: streamed(b":\n\n", size),
    "carriage returns": lambda size: streamed(b"\r", size),
    "a message of many keys": lambda size: parsed('{"id": 1, "result": {' + many('"k#": 1,', size).rstrip(",") + "}}"),
    "a message of brackets": lambda size: parsed("[" * size),
    "a message of ids": lambda size: parsed('"id" : ' * (size // 7)),
    "a message of digits": lambda size: parsed('{"id": 1, "result": {"n": ' + "9" * min(size, 4000) + "}}"),
    "a message that is not UTF-8": lambda size: parsed('{"id": "' + "\\ud800" * (size // 6) + '"}'),
}


@pytest.mark.parametrize("kind", STREAMS)
def test_stream_parsing_time_is_linear(kind: str, harness: ModuleType) -> None:
    harness.check_growth(STREAMS[kind], 64 * 1024)


def test_line_in_small_pieces_uses_bounded_memory() -> None:
    size = 1 << 18
    framer = Framer(size)

    def feed() -> None:
        for n in range(size // 2 - 1):
            framer.feed(b"%c%c" % (65 + n % 26, 66 + n % 25))

    assert traced_peak(feed) < 6 * size


def test_event_in_small_pieces_uses_bounded_memory() -> None:
    assert traced_peak(lambda: streamed(b"data:xyz\n", 1 << 18)) < 6 * (1 << 18)


# -- the limits --------------------------------------------------------------------------------------------------------


def test_slow_input_is_noticed(guarded_check: Guarded, harness: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    check = guarded_check("framing")
    monkeypatch.setattr(harness, "SECONDS", -1.0)
    with pytest.raises(harness.TooSlow):
        check(b"\xff\x01line\n")


def test_quadratic_growth_is_noticed(harness: ModuleType) -> None:
    def quadratic(size: int) -> None:
        for n in range(0, size, 16):
            (b"x" * n).count(b"y")

    with pytest.raises(harness.TooSlow):
        harness.check_growth(quadratic, 16 * 1024)


def test_large_memory_use_is_noticed(
    guarded_check: Guarded, harness: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = guarded_check("framing")
    monkeypatch.setattr(harness, "BYTES", -1)
    with pytest.raises(harness.TooLarge):
        check(b"\xff\x01line\n")
