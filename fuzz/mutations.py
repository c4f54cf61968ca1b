"""Check random changes of a corpus's inputs, without coverage and without atheris.

    python fuzz/mutations.py config --inputs 1000000 [--seed 1] [--corpus DIR …] [--found DIR]

A coverage-guided run finds new paths through a parser but handles few inputs per second. This run handles many more:
it changes the corpus that the guided run left. The last line is a JSON object with the number of inputs.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent))  # for the targets and `harness`

from harness import guarded

CORPUS: Final = Path(__file__).resolve().parent / "corpus"
MAX_BYTES: Final = 4096
GROWTH_EVERY: Final = 1000  # inputs; the growth check reads an enlarged input several times
SPECIAL: Final = b"{}[]\"':,\\/\n\r\t\0 $%#&=;-+.019eE\x7f\x80\xc3\xef\xff"
_TOKEN: Final = re.compile(rb"\w+|\W")


def main() -> int:
    options = _options()
    target = importlib.import_module(f"fuzz_{options.target}")
    check, check_with_growth = guarded(target.check), guarded(target.check, getattr(target, "grown", None))
    began = time.process_time()
    for number, data in enumerate(mutations(read_corpus(options.corpus), options.seed), 1):
        try:
            (check if number % GROWTH_EVERY else check_with_growth)(data)
        except Exception:
            path = options.found / f"{options.target}-{hashlib.sha256(data).hexdigest()[:16]}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            print(f"input {number} with seed {options.seed} fails: {path}", file=sys.stderr)
            raise
        if number == options.inputs:
            break
    print(json.dumps({"target": options.target, "inputs": number, "cpu_seconds": time.process_time() - began}))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("target", choices=sorted(path.name for path in CORPUS.iterdir()))
    parser.add_argument("--inputs", type=int, default=100_000, metavar="N", help="number of inputs (100000)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the random changes (1)")
    parser.add_argument("--corpus", nargs="+", type=Path, metavar="DIR", help="folders of inputs (fuzz/corpus/TARGET)")
    parser.add_argument("--found", type=Path, default=Path("build/fuzz"), metavar="DIR", help="for failing inputs")
    options = parser.parse_args()
    options.corpus = options.corpus or [CORPUS / options.target]
    return options


def read_corpus(folders: Sequence[Path]) -> list[bytes]:
    """Return the inputs of the folders, in the order of their names."""
    return [path.read_bytes()[:MAX_BYTES] for folder in folders for path in sorted(folder.iterdir())]


def mutations(corpus: Sequence[bytes], seed: int) -> Iterator[bytes]:
    """Yield endlessly inputs of the corpus with one to four random changes. The same seed yields the same inputs."""
    random = Random(seed)
    tokens = sorted({token for data in corpus for token in _TOKEN.findall(data)})
    while True:
        data = bytearray(random.choice(corpus))
        for _ in range(random.randint(1, 4)):
            _change(data, corpus, tokens, random)
        yield bytes(data[:MAX_BYTES])


def _change(data: bytearray, corpus: Sequence[bytes], tokens: Sequence[bytes], random: Random) -> None:
    at = random.randint(0, len(data))
    end = min(len(data), at + random.choice((1, 1, 2, 4, 16, 64)))
    match random.randrange(7):
        case 0 if at < len(data):
            data[at] ^= 1 << random.randrange(8)
        case 1:
            data[at:end] = random.randbytes(end - at)
        case 2:
            data[at:at] = bytes([random.choice(SPECIAL)])
        case 3:
            del data[at:end]
        case 4:
            data[at:at] = data[at:end] * random.randint(1, 4)
        case 5:
            data[at:end] = random.choice(tokens) if tokens else b""
        case _:
            other = random.choice(corpus)
            data[at:] = other[random.randint(0, len(other)) :]


if __name__ == "__main__":
    sys.exit(main())
