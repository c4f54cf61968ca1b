"""Print facts about the source tree, and fail if one is out of bounds.

    python scripts/tree_facts.py                    print the facts and the bounds
    python scripts/tree_facts.py --docstrings 60    print 60 docstrings, drawn at random (--seed 2: others)

Phrases that sound translated are in scripts/words.toml.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import names
import words

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
SEED = 20261116

MEDIAN_LINES = (130, 260)
MAX_SAME_BASENAME = 3
MAX_PARAMETERS = 10  # of a function that is neither a command nor a constructor for users
MAX_FUNCTION_LINES = 60
MAX_LONG_FUNCTIONS = 15
#: What isn't good yet, and may only become less.
MAX_IN_CYCLES = 0  # modules, with imports inside functions
MAX_WIDE_FUNCTIONS = 0
MAX_LAZY_IMPORTS = 210
#: Constructors for users: their parameters are what a user may choose.
WIDE_FOR_USERS = (
    "toolway.hub.hub:Hub.__init__",
    "toolway.hub.sync:SyncHub.__init__",
    "toolway.agents.agent:Agent.__init__",
)
PARTS = SOURCE / "toolway" / "parts"


@dataclass(frozen=True)
class Fact:
    """One measured property of the tree and whether it is within its bound."""

    name: str
    value: str
    bound: str
    holds: bool
    details: tuple[str, ...] = ()


def module_name(path: Path) -> str:
    """Return the dotted name of a source file."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def runtime_imports(tree: ast.Module) -> Iterator[str]:
    """Yield the modules and names that a module imports when it is loaded."""
    pending: list[ast.stmt] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending.extend(node.orelse)
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.ClassDef):
            pending.extend(child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt))


def all_imports(tree: ast.Module) -> Iterator[str]:
    """Yield the modules and names that a module imports at any time, also inside functions."""
    skipped = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for part in node.body
        for child in ast.walk(part)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def full_graph(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Return, for each module, the modules of the package that it imports at any time."""
    return {name: {each for each in all_imports(tree) if each in trees} - {name} for name, tree in trees.items()}


def functions(trees: dict[str, ast.Module]) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield every function with its name, such as `toolway.hub.hub:Hub.call_tool`."""

    def walk(node: ast.AST, name: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                path = f"{name}{'' if name.endswith(':') else '.'}{child.name}"
                if not isinstance(child, ast.ClassDef):
                    yield path, child
                yield from walk(child, path)

    for name, tree in trees.items():
        yield from walk(tree, f"{name}:")


def wide_functions(trees: dict[str, ast.Module]) -> list[str]:
    """Return the functions with more than `MAX_PARAMETERS`, without commands and what users construct."""
    found = []
    for name, node in functions(trees):
        count = len(node.args.args) + len(node.args.kwonlyargs) - (node.args.args[:1] != [] and _is_method(node))
        is_command = ".cli" in name.partition(":")[0]
        if count > MAX_PARAMETERS and not is_command and name not in WIDE_FOR_USERS:
            found.append(f"{name} ({count})")
    return found


def _is_method(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return node.args.args[0].arg in ("self", "cls")


def part_uses(sources: dict[str, str]) -> dict[str, list[str]]:
    """Return, for each part, the modules that name its package, outside its folder and of parts that need it."""
    parts = sorted(path.name for path in PARTS.iterdir() if (path / "__init__.py").is_file())
    needs = {
        part: re.findall(r"^    needs = \((.*)\)$", sources[f"toolway.parts.{part}"], re.MULTILINE) for part in parts
    }
    users = {part: [each for each in parts if any(f'"{part}"' in line for line in needs[each])] for part in parts}
    return {
        part: [
            name
            for name, text in sources.items()
            if f"parts.{part}" in text
            and not name.startswith(tuple(f"toolway.parts.{each}" for each in (part, *users[part])))
        ]
        for part in parts
    }


def import_graph(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Return, for each module, the modules of the package that it imports when it is loaded."""
    return {name: {each for each in runtime_imports(tree) if each in trees} - {name} for name, tree in trees.items()}


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components with more than one module (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for each in graph[name]:
            if each not in index:
                visit(each)
                low[name] = min(low[name], low[each])
            elif each in stack:
                low[name] = min(low[name], index[each])
        if low[name] == index[name]:
            component = []
            while True:
                component.append(stack.pop())
                if component[-1] == name:
                    break
            if len(component) > 1:
                found.append(sorted(component))

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return found


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield (line, name, docstring) of a module, its classes and functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield node.body[0].lineno, getattr(node, "name", "(module)"), text


def facts() -> list[Fact]:
    """Measure the tree."""
    paths = sorted(SOURCE.rglob("*.py"))
    sources = {module_name(path): path.read_text() for path in paths}
    trees = {name: ast.parse(text) for name, text in sources.items()}
    modules = [path for path in paths if path.name != "__init__.py"]
    lines = [len(path.read_text().splitlines()) for path in modules]
    median = statistics.median(lines)
    loops = cycles(import_graph(trees))
    # All parts have modules of the same names.
    basenames = Counter(path.stem for path in modules if "parts" not in path.relative_to(SOURCE).parts)
    classes: dict[str, list[str]] = defaultdict(list)
    for name, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(name)
    twice = {name: homes for name, homes in classes.items() if len(homes) > 1}
    repeated = [f"{name} ({count})" for name, count in basenames.items() if count > MAX_SAME_BASENAME]
    low, high = MEDIAN_LINES
    total = sum(len(text.splitlines()) for text in sources.values())
    lazy = sum(_lazy_imports(tree) for tree in trees.values())
    whole_loops = cycles(full_graph(trees))
    looped = sum(map(len, whole_loops))
    wide = wide_functions(trees)
    long = [
        f"{name} ({size} lines)"
        for name, node in functions(trees)
        if (size := (node.end_lineno or 0) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]
    uses = part_uses(sources)
    stray = [f"{part}: {', '.join(names)}" for part, names in uses.items() if names != ["toolway.part_api.registry"]]
    return [
        Fact("files", str(len(paths)), "", True),
        Fact("lines", str(total), "", True),
        Fact("median module", f"{median:g} lines", f"{low} to {high}", low <= median <= high),
        Fact("import cycles", str(len(loops)), "0", not loops, tuple(" ⇄ ".join(each) for each in loops)),
        Fact(
            "modules in import cycles, imports inside functions included",
            str(looped),
            f"at most {MAX_IN_CYCLES}",
            looped <= MAX_IN_CYCLES,
            tuple(" ⇄ ".join(each) for each in whole_loops),
        ),
        Fact("imports inside functions", str(lazy), f"at most {MAX_LAZY_IMPORTS}", lazy <= MAX_LAZY_IMPORTS),
        Fact(
            f"functions with more than {MAX_PARAMETERS} parameters",
            str(len(wide)),
            f"at most {MAX_WIDE_FUNCTIONS}",
            len(wide) <= MAX_WIDE_FUNCTIONS,
            tuple(wide),
        ),
        Fact(
            f"functions of more than {MAX_FUNCTION_LINES} lines",
            str(len(long)),
            f"at most {MAX_LONG_FUNCTIONS}",
            len(long) <= MAX_LONG_FUNCTIONS,
            tuple(long),
        ),
        Fact(
            "parts, each named outside its folder by one file",
            ", ".join(f"{part} ({len(names)})" for part, names in uses.items()),
            "the registry",
            not stray,
            tuple(stray),
        ),
        Fact(
            "most frequent module name",
            "{} ({} times)".format(*basenames.most_common(1)[0]),
            f"at most {MAX_SAME_BASENAME} times",
            not repeated,
            tuple(repeated),
        ),
        Fact(
            "public class names used twice",
            str(len(twice)),
            "0",
            not twice,
            tuple(f"{name}: {', '.join(homes)}" for name, homes in sorted(twice.items())),
        ),
        *(_phrases(area) for area in words.AREAS),
        _names(),
    ]


def _phrases(area: str) -> Fact:
    count, most = len(words.hits(area)), words.rules()["most"][area]
    return Fact(
        f"phrases that sound translated, {area}", str(count), f"at most {most}: scripts/words.py {area}", count <= most
    )


def _names() -> Fact:
    found = names.problems()
    return Fact(
        "names of tests with private words or over 60 characters", str(len(found)), "0", not found, tuple(found)
    )


def _lazy_imports(tree: ast.Module) -> int:
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return len(
        {id(each) for node in functions for each in ast.walk(node) if isinstance(each, ast.Import | ast.ImportFrom)}
    )


def print_docstrings(count: int, seed: int) -> None:
    """Print docstrings drawn at random. The same seed draws the same places."""
    found = [
        f"{path.relative_to(SOURCE)}:{line} {name}\n    " + text.replace("\n", "\n    ")
        for path in sorted(SOURCE.rglob("*.py"))
        for line, name, text in docstrings(ast.parse(path.read_text()))
    ]
    for number, text in enumerate(random.Random(seed).sample(found, count), 1):
        print(f"{number}. {text}\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docstrings", type=int, metavar="N", help="print N docstrings, drawn at random")
    parser.add_argument("--seed", type=int, default=SEED, help=f"of the draw ({SEED})")
    options = parser.parse_args()
    if options.docstrings:
        print_docstrings(options.docstrings, options.seed)
        return 0
    measured = facts()
    for fact in measured:
        bound = f"  ({fact.bound})" if fact.bound else ""
        print(f"{'ok  ' if fact.holds else 'FAIL'} {fact.name}: {fact.value}{bound}")
        for detail in () if fact.holds else fact.details:
            print(f"       {detail}")
    return 0 if all(fact.holds for fact in measured) else 1


if __name__ == "__main__":
    sys.exit(main())
