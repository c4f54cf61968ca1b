"""List the tests and test helpers whose names are too long or use private words, as scripts/words.toml defines.

python scripts/names.py
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator

import words

MAX_CHARS = 60
_PARTS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+")


def main() -> int:
    found = problems()
    print(*found, sep="\n")
    return 1 if found else 0


def problems() -> list[str]:
    """Return the names that break a rule, with what is wrong and their places."""
    rules = words.rules()["names"]
    excepted = {each["name"] for each in rules.get("exception", ())}
    found = []
    for place, name in _names():
        is_test = name.startswith("test_")
        private = {*rules["everywhere"], *(rules["tests"] if is_test else rules["helpers"])}
        banned = private.intersection(part.lower() for part in _PARTS.findall(name))
        if name in excepted:
            continue
        if banned:
            found.append(f"{place}: {name}: not {', '.join(sorted(banned))}")
        if is_test and len(name) > MAX_CHARS:
            found.append(f"{place}: {name}: {len(name)} characters, at most {MAX_CHARS}")
    return found


def _names() -> Iterator[tuple[str, str]]:
    """Yield each class and function below tests/ with its place."""
    for path in sorted((words.ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.relative_to(words.ROOT).as_posix()}:{node.lineno}", node.name


if __name__ == "__main__":
    sys.exit(main())
