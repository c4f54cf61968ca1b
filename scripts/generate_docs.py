"""Generate the parts of docs/ that are derived from the source: configuration, command line, errors, promises and more.

    python scripts/generate_docs.py [--check]

A generated part is between two comments of its page; the rest of the page is written by hand.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import admin_reference
import api_reference
import client_tables
import comparison
import figures
import lifecycle
import platforms
import promises
import typer

from toolway.cli.app import app
from toolway.cli.error_pages import first_paragraph
from toolway.cli.framework import CommandSpec
from toolway.cli.options import CONFIG_OPTIONS, GATEWAY_OPTIONS, OUTPUT_OPTIONS, RUN_OPTIONS
from toolway.cli.table import COMMANDS
from toolway.gateway.mcp.errors import http_status_for
from toolway.telemetry.prometheus import all_metrics

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
ERRORS = ROOT / "docs" / "errors"
DECISIONS = ROOT / "docs" / "decisions"
EXPLANATION = ROOT / "docs" / "explanation"
SCHEMA = ROOT / "src" / "toolway" / "config" / "schema.py"
HTTP_APIS = ROOT / "src" / "toolway" / "parts" / "openapi" / "settings.py"
SETTINGS = ROOT / "src" / "toolway" / "config" / "settings.py"
PARTS = ROOT / "src" / "toolway" / "parts"
LOGIN = PARTS / "identity" / "settings.py"
NETWORK_POLICY = ROOT / "src" / "toolway" / "network" / "policy.py"
CODES = ROOT / "src" / "toolway" / "gateway" / "mcp" / "errors.py"
EXITS = ROOT / "src" / "toolway" / "cli" / "exit_codes.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a page is out of date")
    check = parser.parse_args().check
    current = pages()
    stale = [page for page, text in current.items() if not page.exists() or page.read_text(encoding="utf-8") != text]
    for page in stale:
        print(f"{page.relative_to(ROOT)} {'is out of date: run make docs' if check else 'written'}")
        if not check:
            page.write_text(current[page], encoding="utf-8")
    sys.exit(bool(check and stale))


def pages() -> dict[Path, str]:
    """Return every page that has generated parts, with its up-to-date text."""
    parts = {
        REFERENCE / "config.md": {
            "server": "\n\n".join((config(SCHEMA, "Server", rest=True), config(HTTP_APIS, rest=True))),
            "gateway": config(SETTINGS, "GatewaySettings", "ToolsetSettings"),
            "login": config(LOGIN, "LoginSettings", "IntrospectionSettings"),
            "search": config(PARTS / "search" / "settings.py", "SearchSettings"),
            "parts": part_settings(),
            "addresses": config(NETWORK_POLICY, "NetworkPolicy"),
            "audit": config(SETTINGS, "AuditSettings", "AlertSettings"),
            "telemetry": config(SETTINGS, "TelemetrySettings", "TraceSettings"),
        },
        REFERENCE / "advisories.md": {"rows": advisories()},
        REFERENCE / "cli.md": {"commands": commands(), "exits": exits()},
        REFERENCE / "admin-api.md": {"operations": admin_reference.operations(), "schemas": admin_reference.schemas()},
        REFERENCE / "clients.md": {"files": client_tables.files(), "fields": client_tables.fields()},
        REFERENCE / "errors.md": {"codes": rpc_codes()},
        REFERENCE / "metrics.md": {"metrics": metrics()},
        REFERENCE / "promises.md": {
            "summary": promises.summary(),
            "items": promises.items(),
            "different": promises.reasons("different"),
            "trial": promises.trial(),
        },
        REFERENCE / "platforms.md": {
            "systems": platforms.systems(),
            "checks": platforms.checks(),
            "commands": platforms.commands(),
        },
        ERRORS / "index.md": {"codes": error_codes()},
        DECISIONS / "index.md": {"decisions": decisions()},
        EXPLANATION / "upstream-life.md": {"life": f"![Lifecycle of a server](lifecycle.svg)\n\n{lifecycle.table()}"},
    }
    filled = {page: _filled(page, generated) for page, generated in parts.items()}
    numbered = {page: figures.fill(page, page.read_text(encoding="utf-8")) for page in figures.SENTENCES}
    whole = {REFERENCE / "python.md": api_reference.page(), EXPLANATION / "lifecycle.svg": lifecycle.picture()}
    return {**filled, **numbered, **whole, comparison.PAGE: comparison.page()}


def _filled(page: Path, parts: dict[str, str]) -> str:
    text = page.read_text(encoding="utf-8")
    for name, part in parts.items():
        begin, end = f"<!-- generated: {name} -->", f"<!-- end: {name} -->"
        head, _, rest = text.partition(begin)
        _, found, tail = rest.partition(end)
        if not found:
            raise SystemExit(f"{page.relative_to(ROOT)} has no generated part {name!r}: {begin} … {end}")
        text = f"{head}{begin}\n\n{part.strip()}\n\n{end}{tail}"
    return text


# -- configuration ---------------------------------------------------------------------------------------------------


def part_settings() -> str:
    """Return the settings of all parts that have some."""
    files = sorted(set(PARTS.glob("*/settings.py")) - {HTTP_APIS})
    return "\n\n".join(
        config(file, *re.findall(r"^class (\w+Settings)\(", file.read_text(), re.MULTILINE)) for file in files
    )


def config(file: Path, *names: str, rest: bool = False) -> str:
    """Return the fields of these classes of a file and, with `rest`, of all others after them."""
    source = file.read_text(encoding="utf-8")
    comments = _comments(source)
    tree = ast.parse(source).body
    classes = [node for node in tree if isinstance(node, ast.ClassDef) and (rest or node.name in names)]
    classes = [node for node in classes if node.name not in ("ConfigIssue", "Rate")]  # not settings
    constants = {
        node.target.id: ast.unparse(node.value)
        for node in tree
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None
    }
    classes.sort(key=lambda node: names.index(node.name) if node.name in names else len(names))
    linked = {node.name for node in classes}
    return "\n\n".join(_class(node, comments, linked, constants) for node in classes)


def _class(node: ast.ClassDef, comments: dict[int, str], names: set[str], constants: dict[str, str]) -> str:
    rows = []
    for name, kind, default, comment in _fields(node, comments, constants):
        meaning = comment or (f"see [{kind}](#{kind.lower()})" if kind in names else "")
        rows.append(f"| `{name}` | `{_cell(kind)}` | {_cell(default)} | {_cell(meaning)} |")
    about = " ".join((ast.get_docstring(node) or "").partition("Attributes:")[0].partition("Example:")[0].split())
    return "\n".join(
        [f"### {node.name}", "", about, "", "| field | type | default | meaning |", "|---|---|---|---|", *rows]
    )


def _fields(
    node: ast.ClassDef, comments: dict[int, str], constants: dict[str, str]
) -> Iterator[tuple[str, str, str, str]]:
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.target.id[0] != "_":
            if ast.unparse(item.annotation).startswith("ClassVar"):
                continue
            default = _default(item.value, constants)
            yield item.target.id, ast.unparse(item.annotation), default, comments.get(item.lineno, "")


def _default(value: ast.expr | None, constants: dict[str, str]) -> str:
    if value is None:
        return "required"
    text = ast.unparse(value)
    text = constants.get(text, text)
    text = text.removeprefix("msgspec.")
    if made := re.fullmatch(r"field\(default_factory=([A-Z]\w*)\)", text):
        return f"`{made[1]}()`"
    if text in ("{}", "[]") or text.startswith("field("):
        return "empty"
    return "–" if text == "None" else f"`{text}`"


def _comments(source: str) -> dict[int, str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}


def advisories() -> str:
    """Return the table of published advisories, with the tests that would find the same fault here."""
    rows = ["| advisory | the fault | tests |", "|---|---|---|"]
    listed = tomllib.loads((ROOT / "tests" / "advisories.toml").read_text(encoding="utf-8"))
    for entry in listed.values():
        tests = "<br>".join(f"`{test.partition('::')[2]}`" for test in entry.get("tests", ()))
        rows.append(f"| {_cell(entry['advisory'])} | {_cell(entry['text'])} | {tests or _cell(entry['reason'])} |")
    return "\n".join(rows)


def metrics() -> str:
    """Return the table of all metrics: the core's first, then the parts'."""
    rows = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for name, (kind, labels, what) in all_metrics().items():
        shown = f"{name}_total" if kind == "counter" else name
        rows.append(f"| `{shown}` | {kind} | {', '.join(f'`{label}`' for label in labels) or '–'} | {_cell(what)} |")
    return "\n".join(rows)


# -- the command line -------------------------------------------------------------------------------------------------


SETS = {
    OUTPUT_OPTIONS: "output options",
    CONFIG_OPTIONS: "output options and `--config`",
    RUN_OPTIONS: "output options, `--gateway` and `--token`",
    CONFIG_OPTIONS | RUN_OPTIONS: "all but `--no-gateway`",
    GATEWAY_OPTIONS: "all",
}


def commands() -> str:
    root = typer.main.get_command(app)
    everywhere = [p for p in root.params if p.name in GATEWAY_OPTIONS]
    parts = ["### Global options", "", "They may precede or follow the name of the command.", "", *_options(everywhere)]
    return "\n\n".join(["\n".join(parts), *_in_group("", root, COMMANDS)])


def _in_group(prefix: str, group: Any, table: Mapping[str, CommandSpec]) -> Iterator[str]:
    for name, entry in table.items():
        command = group.get_command(None, name)
        if entry.takes_words:
            yield _command(f"{prefix}{name}", group.own_command(name), SETS[entry.options])
        elif entry.subcommands is not None and entry.function_path:
            yield _command(f"{prefix}{name}", command, SETS[entry.options])
        if entry.subcommands is not None:
            yield from _in_group(f"{prefix}{name} ", command, entry.subcommands)
        else:
            yield _command(f"{prefix}{name}", command, SETS[entry.options])


def _command(name: str, command: Any, shared: str) -> str:
    positional = [p for p in command.params if p.param_type_name == "argument"]
    own = [
        p for p in command.params if p.param_type_name == "option" and p.name not in GATEWAY_OPTIONS and not p.hidden
    ]
    usage = " ".join([f"toolway {name}", "[OPTIONS]", *(p.metavar or p.name.upper() for p in positional)])
    arguments = [f"- `{(p.metavar or p.name.upper()).strip('[]…')}`: {p.help}" for p in positional if p.help]
    heading = [f"### {name}", "", command.help, "", "```text", usage, "```", ""]
    lines = [*heading, *arguments, *([""] if arguments else []), *(_options(own) if own else ())]
    return "\n".join([*lines, *([""] if own else ()), f"Global options: {shared}."])


def _options(options: Sequence[Any]) -> list[str]:
    rows = [f"| {_option(p)} | {_cell(p.help or '')} | {_shown_default(p)} |" for p in options]
    return ["| option | meaning | default |", "|---|---|---|", *rows]


def _option(option: Any) -> str:
    spelling = ", ".join(f"`{opt}`" for opt in sorted(option.opts, key=len, reverse=True))
    return spelling if option.is_flag else f"{spelling} {option.metavar or ''}".strip()


def _shown_default(option: Any) -> str:
    return f"`{option.default:g}`" if isinstance(option.default, float) else ""


def exits() -> str:
    rows = re.findall(r"^    (\w+) = (\d+)(?:  # (.*))?$", EXITS.read_text(encoding="utf-8"), re.MULTILINE)
    lines = [f"| {number} | {_cell(meaning or name.lower())} |" for name, number, meaning in rows]
    return "\n".join(["| exit code | meaning |", "|---|---|", *lines])


def error_codes() -> str:
    """Return the table of error codes, each with the first sentence of its page."""
    pages = sorted(ERRORS.glob("E-*.md"))
    lines = [f"| [{page.stem}]({page.name}) | {_cell(first_paragraph(page))} |" for page in pages]
    return "\n".join(["| code | meaning |", "|---|---|", *lines])


def decisions() -> str:
    """Return a link to each decision, with its title."""
    lines = []
    for page in sorted(DECISIONS.glob("0*.md")):
        number, _, title = page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ").partition(" · ")
        lines.append(f"- [{number}]({page.name}) {title}")
    return "\n".join(lines)


def rpc_codes() -> str:
    """Return the JSON-RPC codes of the gateway's errors, with the HTTP status that a modern client gets."""
    rows = re.findall(r"^(\w+): Final = (-\d+)  # (.*)$", CODES.read_text(encoding="utf-8"), re.MULTILINE)
    lines = [f"| {code} | {http_status_for(int(code))} | {_cell(meaning)} |" for _, code, meaning in rows]
    return "\n".join(["| JSON-RPC code | HTTP status | meaning |", "|---|---|---|", *lines])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    main()
