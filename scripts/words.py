"""Find phrases that sound translated, and print what to write instead: scripts/words.toml has them.

    python scripts/words.py            how often each phrase occurs in docs, code and tests
    python scripts/words.py docs       each hit in the docs, with its replacement (code, tests, retired: there)
    python scripts/words.py --sample messages 40 --seed 2      error messages with a hint, drawn at random
    python scripts/words.py --sample paragraphs 20             paragraphs of the docs written by hand

In code only what is read as English counts: comments, docstrings and other strings. `retired` has the names that
settings, options, commands and states had before 0.1: no page, setting or line of code may have them.
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
SHELL: Final = ("Makefile", ".ci/run", "scripts/find-python", "scripts/install", "scripts/pin", "scripts/*-python")
AREAS: Final = {
    "docs": ("docs/**/*.md", "*.md"),
    "code": ("src/**/*.py", "dashboard/src/**/*.ts", "dashboard/src/**/*.tsx", "examples/**/*.py", "scripts/*.py"),
    "tests": (*(f"{each}/**/*.py" for each in ("tests", "bench", "conformance", "interop", "fuzz")), *SHELL),
    "retired": (
        *("docs/**/*.md", "*.md", "src/**/*.py", "dashboard/src/**/*.ts", "dashboard/src/**/*.tsx", "examples/**/*.*"),
        *("deploy/**/*.yml", "deploy/**/*.yaml", "deploy/**/*.json", "deploy/**/*.md"),
    ),
}
#: Written by a command; what they say is checked where it comes from.
GENERATED: Final = ("docs/reference/admin-api.md", "docs/reference/cli.md", "docs/reference/python.md")


class Hit(NamedTuple):
    path: str
    line: int
    found: str
    text: str
    write: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.found!r} → {self.write}\n    {self.text.strip()[:140]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("areas", nargs="*", help="print each hit in docs, code, tests or retired")
    parser.add_argument(
        "--sample", nargs=2, metavar=("KIND", "N"), help=f"print N of {' or '.join(SAMPLES)}, at random"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the draw (1)")
    options = parser.parse_args()
    if options.sample:
        kind, count = options.sample
        samples = [each for path in sorted(ROOT.glob(SAMPLES[kind][0])) for each in SAMPLES[kind][1](path)]
        print(*random.Random(options.seed).sample(samples, min(int(count), len(samples))), sep="\n\n")
        return 0
    areas = options.areas
    if unknown := set(areas) - AREAS.keys():
        print(f"no such area: {', '.join(sorted(unknown))}; there are {', '.join(AREAS)}", file=sys.stderr)
        return 2
    for area in areas:
        print(*hits(area), sep="\n")
    if not areas:
        found = {area: Counter(each.write for each in hits(area)) for area in AREAS}
        print(f"{'':62}" + "".join(f"{area:>8}" for area in AREAS))
        for write in (each["write"] for kind in ("pattern", "retired") for each in rules()[kind]):
            print(f"{write[:60]:62}" + "".join(f"{found[area][write]:8}" for area in AREAS))
        print(f"{'in all':62}" + "".join(f"{found[area].total():8}" for area in AREAS))
    return 0


def rules() -> Mapping[str, Any]:
    return tomllib.loads((ROOT / "scripts" / "words.toml").read_text())


def hits(area: str) -> list[Hit]:
    """Return all phrases of an area that are not excepted."""
    known, kind = rules(), "retired" if area == "retired" else "pattern"
    excepted = [(each["path"], each["text"]) for each in known.get("exception", ())]
    patterns = [(re.compile(each["find"], re.IGNORECASE), each["write"], each.get("only", "")) for each in known[kind]]
    found = []
    for path in sorted(
        {
            path
            for each in AREAS[area]
            for path in ROOT.glob(each)
            if not {"node_modules", "__pycache__"} & {*path.parts}
        }
    ):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(GENERATED):
            continue
        source = path.read_text()
        for number, line in enumerate(source.split("\n"), 1) if area == "retired" else _lines(name, source):
            for pattern, write, only in patterns:
                found += [] if only else [Hit(name, number, each[0], line, write) for each in pattern.finditer(line)]
        for number, hint in _hints(name, source):
            for pattern, write, only in patterns:
                if only == "hints" and (match := pattern.match(hint)):
                    found.append(Hit(name, number, match[0], hint, write))
    return [
        each
        for each in found
        if not any(text == each.found and PurePath(each.path).match(path) for path, text in excepted)
    ]


def _lines(name: str, source: str) -> Iterator[tuple[int, str]]:
    if name.endswith(".py"):
        yield from python_texts(source)
        return
    in_code = False
    is_shell = "." not in Path(name).name
    for number, line in enumerate(source.split("\n"), 1):
        if is_shell:
            line = line.partition("#")[2]
        if name.endswith(".md"):
            in_code ^= line.lstrip().startswith("```")
            if in_code:
                continue
            line = re.sub(r"`[^`]*`|\]\([^)]*\)", "", line)
        yield number, line


def python_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of all comments and string literals of a module with their line numbers."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)):
            for offset, line in enumerate(token.string.split("\n")):
                yield token.start[0] + offset, line


def _hints(name: str, source: str) -> Iterator[tuple[int, str]]:
    """Yield the beginnings of hints of errors: what a user should do."""
    if not name.endswith(".py") or "hint" not in source:
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword) and node.arg == "hint":
            value = node.value.values[0] if isinstance(node.value, ast.JoinedStr) and node.value.values else node.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield node.value.lineno, value.value


def _messages(path: Path) -> Iterator[str]:
    """Yield the errors that a module creates with a message and a hint in place, as in the source."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and (hint := _argument(node, "hint")):
            message = max((each for each in map(_source, node.args) if _is_sentence(each)), key=len, default="")
            parts = [("", message), ("detail  ", _argument(node, "detail")), ("hint    ", hint)]
            lines = "\n".join(f"    {name}{value}" for name, value in parts if value)
            if message and _is_sentence(hint):
                yield f"{path.relative_to(ROOT)}:{node.lineno}\n{lines}"


def _is_sentence(source: str) -> bool:
    return re.search(r"[a-z] .*['\"]|[a-z].* [a-z].*['\"]", source) is not None and source[0] in "'\"fF"


def _argument(node: ast.Call, name: str) -> str:
    return next((_source(each.value) for each in node.keywords if each.arg == name), "")


def _source(node: ast.expr) -> str:
    return ast.unparse(node)


def _paragraphs(path: Path) -> Iterator[str]:
    """Yield the prose paragraphs of a page: no headings, lists, tables, or code."""
    name, line = path.relative_to(ROOT).as_posix(), 1
    if name.startswith(GENERATED):
        return
    in_code = False
    for block in path.read_text().split("\n\n"):
        if not in_code and re.match(r"\n*[\w*`\[\"]", block) and len(block) > 80:
            yield f"{name}:{line + len(block) - len(block.lstrip(chr(10)))}\n{block.strip()}"
        in_code ^= len(re.findall(r"^\s*```", block, re.MULTILINE)) % 2 == 1
        line += block.count("\n") + 2


SAMPLES: Final[Mapping[str, tuple[str, Callable[[Path], Iterator[str]]]]] = {
    "messages": ("src/**/*.py", _messages),
    "paragraphs": ("docs/**/*.md", _paragraphs),
}


if __name__ == "__main__":
    sys.exit(main())
