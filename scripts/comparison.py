"""docs/explanation/comparison.md, generated from docs/data/comparison.toml, the published benchmarks, and the code.

A number that exists elsewhere in the repository is read from there, so the page cannot contradict it.
"""

from __future__ import annotations

import datetime
import json
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # bench is not an installed package

from bench.formatting import markdown, short  # noqa: E402 # found by the path above
from bench.verdicts import Rows  # noqa: E402
from toolway import __version__  # noqa: E402
from toolway.config.clients.registry import CLIENTS  # noqa: E402
from toolway.protocol.constants import MODERN_PROTOCOL_VERSIONS  # noqa: E402

PAGE = ROOT / "docs" / "explanation" / "comparison.md"
DATA = ROOT / "docs" / "data" / "comparison.toml"
FIGURES = ROOT / "bench" / "published.json"
WORKFLOWS = ROOT / "bench" / "workflows" / "published.json"

MAX_DAYS = 90
NOT_FOUND, UNKNOWN = "–", "?"
CONNECTIONS = 16
#: The peers of the table of speed, with their names in it.
SPEED = {
    "toolway": "Toolway",
    "envoy": "Envoy's MCP router",
    "fastmcp-shared": "FastMCP proxy, one shared client",
    "fastmcp": "FastMCP proxy, default",
    "litellm": "LiteLLM",
    "contextforge": "ContextForge",
}


@dataclass(frozen=True)
class Sources:
    """What the page is made from."""

    data: Mapping[str, Any]
    figures: dict[str, Any]
    workflows: dict[str, Any]

    @classmethod
    def read(cls) -> Sources:
        return cls(
            tomllib.loads(DATA.read_text(encoding="utf-8")),
            json.loads(FIGURES.read_text(encoding="utf-8")),
            json.loads(WORKFLOWS.read_text(encoding="utf-8")),
        )


def page(sources: Sources | None = None) -> str:
    """Return the text of the page."""
    given = sources or Sources.read()
    return _TEXT.format(
        checked=_oldest(given.data),
        clients=len(CLIENTS),
        doubled=_doubled(given.workflows),
        elsewhere="\n".join(f"- {each['text']}" for each in given.data["elsewhere"]),
        table=_table(given),
        connections=CONNECTIONS,
        measured=given.figures["date"],
        speed=_speed(given.figures),
        nginx=short(_rate(given.figures, "nginx", "modern")),
    )


def problems(data: Mapping[str, Any], today: datetime.date) -> list[str]:
    """Return what is wrong with the cells: a missing or old date, a missing source, an unknown value without a note."""
    found = []
    for name, cell in _entries(data):
        sources = cell.get("sources") or [cell.get("source")]
        if not all(sources) or not all(map(_is_source, sources)):
            found.append(f"{name}: needs an address or a file of the repository as its source")
        elif not name.endswith("toolway") and any(_unversioned(each) for each in sources):
            found.append(f"{name}: needs a version in its source: a commit, not a branch")
        checked = cell.get("checked")
        if not isinstance(checked, datetime.date):
            found.append(f"{name}: needs the day on which it was checked")
        elif (today - checked).days > MAX_DAYS:
            found.append(f"{name}: was checked on {checked}, more than {MAX_DAYS} days ago")
        if cell.get("value") == UNKNOWN and not cell.get("note"):
            found.append(f"{name}: needs a note that says what could not be found")
    return found


def _entries(data: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for row in data["row"]:
        for project in data["projects"]:
            yield f"{row['title']}, {project}", row.get(project, {})
    for each in data["elsewhere"]:
        yield each["text"][:40], each


def _is_source(source: str) -> bool:
    return source.startswith("https://") or (ROOT / source).exists()


def _unversioned(source: str) -> bool:
    return "/blob/main/" in source or "/blob/master/" in source or "/tree/" in source


def _oldest(data: Mapping[str, Any]) -> str:
    """Return the oldest date of a cell: the page claims no more than its oldest cell does."""
    return str(min(cell["checked"] for _, cell in _entries(data)))


# -- the tables -------------------------------------------------------------------------------------------------------


def _table(given: Sources) -> str:
    projects: Mapping[str, str] = given.data["projects"]
    rows: list[list[str]] = []
    group = ""
    for row in given.data["row"]:
        if row["group"] != group:
            group = row["group"]
            rows.append([f"**{group}**", *("" for _ in projects)])
        rows.append([row["title"], *(_value(given, project, row[project]["value"]) for project in projects)])
    return markdown(["", *projects.values()], rows, right=False)


def _value(given: Sources, project: str, value: str) -> str:
    if not value.startswith("%"):
        return value
    return _COMPUTED[value](given, project)


def _bridges(given: Sources, project: str) -> str:
    """Say whether calls of new clients to a server of the legacy era were answered in the benchmarks."""
    row = Rows(given.figures).get(project, "http legacy", "echo", "modern", CONNECTIONS)
    return "yes" if row and row.get("rate") and not row["errors"] else NOT_FOUND


_COMPUTED: dict[str, Callable[[Sources, str], str]] = {
    "%version": lambda _, __: __version__,
    "%measured-version": lambda given, project: given.figures["peers"][project]["version"],
    "%modern": lambda _, __: "yes" if "2026-07-28" in MODERN_PROTOCOL_VERSIONS else NOT_FOUND,
    "%bridge": _bridges,
    "%clients": lambda _, __: f"both, {len(CLIENTS)} clients",
}


def _speed(figures: dict[str, Any]) -> str:
    rates = [[_rate(figures, peer, era) for era in ("modern", "legacy")] for peer in SPEED]
    starts = [_start(figures, peer) for peer in SPEED]
    best = [max(rate[column] for rate in rates) for column in (0, 1)]
    lines = []
    for name, (modern, legacy), start in zip(SPEED.values(), rates, starts, strict=True):
        pairs = zip((modern, legacy), best, strict=True)
        cells = [_best(short(rate) if rate else NOT_FOUND, rate == top) for rate, top in pairs]
        lines.append([name, *cells, _best(f"{start:.2f} s", start == min(starts))])
    return markdown(["", "clients on 2026-07-28", "older clients", "first result after start"], lines)


def _best(text: str, best: bool) -> str:
    return f"**{text}**" if best else text


def _rate(figures: dict[str, Any], peer: str, era: str) -> float:
    row = Rows(figures).get(peer, "http", "echo", era, CONNECTIONS)
    return float(row["rate"]) if row else 0.0


def _start(figures: dict[str, Any], peer: str) -> float:
    rows = Rows(figures)
    row = rows.get(peer, "http", "first call", "modern", 1) or rows.get(peer, "http", "first call", "legacy", 1)
    if row is None:
        raise ValueError(f"the run lacks the start of {peer}")
    return float(row["seconds"])


def _doubled(workflows: dict[str, Any]) -> str:
    """Return how many unsafe steps ran twice, for each database that Toolway's own engine was measured with."""
    rows = {
        row["engine"]: f"{row['unsafe_doubled']} of {row['unsafe']}" for row in workflows["rows"] if row.get("unsafe")
    }
    sqlite, postgresql = rows["toolway-sqlite"], rows["toolway-postgresql"]
    return f"{sqlite} unsafe steps ran twice with SQLite, and {postgresql} with PostgreSQL"


_TEXT = """# How Toolway compares

Generated by `make docs` from `docs/data/comparison.toml` and the benchmarks. Do not edit.

Every project here is good at something. This page says what, as far as we could tell from its code, docs, and issues on
{checked}. "–" means we didn't find it, not that it can't be done. "?" means we couldn't tell. We may have read an older
version than the one you use: the table says which. Tell us what we got wrong: each cell has a source in
[comparison.toml](../data/comparison.toml).

## What Toolway does that we haven't found elsewhere

- **It tells you whether a failed call ran.** `executed: no`, `unknown`, or `yes` on every call error, and retries that
  depend on it.
- **It bridges MCP versions completely.** Tool calls across versions work in several gateways. Progress, subscriptions,
  and the requests a server sends back in the middle of a call work across versions here, in both directions.
- **It doesn't repeat side effects after a crash.** Workflows and agents record the intent before they send a call. In
  our crash tests, {doubled}.
- **It reads and writes the config of {clients} clients**, and is a library, a command line, and a gateway over one
  file. FastMCP reads and writes a few clients; ToolHive writes to many.
- **It leaves no processes behind** on Linux, even after `kill -9`.
- **It shows its failures.** The [fault matrix](../reliability.md) and the [benchmarks](../benchmarks.md) list what
  failed and which targets we missed.

## What others do that Toolway doesn't

{elsewhere}

## Side by side

{table}

mcp-proxy and supergateway convert one transport into another; mcpo turns tools into REST. If that is all you need, they
are smaller.

## Speed

Calls per second of one process on one core, {connections} connections, 200-byte results, HTTP server behind it. Higher
is better. {measured}, [method and all figures](../benchmarks.md).

{speed}

We ran these on our own machine, with the settings on the benchmarks page. agentgateway, ToolHive, and mcphub aren't
measured. nginx, which forwards bytes and does none of the work, reaches {nginx}.

## Pick something else if

- every server must run in a container → ToolHive
- your models already go through LiteLLM and you have a handful of servers → LiteLLM
- you want one data plane for models, agents, and tools on Kubernetes → agentgateway
- you need several identity providers or content guardrails → ContextForge
- you want a web page where a team installs servers → mcphub
- your client speaks OpenAPI, like Open WebUI → mcpo
- you write a server → FastMCP or the MCP SDK
- you need a package from a registry today → any of the above
"""
