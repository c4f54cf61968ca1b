"""The section about workflows of docs/benchmarks.md, generated from bench/workflows/published.json."""

from __future__ import annotations

import json
from typing import Any

from bench.formatting import markdown, short
from bench.install import ROOT
from bench.workflows.engines import ENGINES

PUBLISHED = ROOT / "bench" / "workflows" / "published.json"
QUIET_LOAD = 1.0  # a higher load before the run is reported
_BY_NAME = {engine.name: engine for engine in ENGINES}


def as_text(result: dict[str, Any]) -> str:
    """Return a result as JSON with one row per line."""
    lists = ("rows", "limits")
    head = json.dumps({key: each for key, each in result.items() if key not in lists}, indent=1, ensure_ascii=False)
    parts = [head.removesuffix("}").rstrip()]
    for name in lists:
        lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in result[name])
        parts.append(f' "{name}": [\n{lines}\n]' if lines else f' "{name}": []')
    return ",\n".join(parts) + "}\n"


def published_text() -> str:
    """Return the section of the published run, or nothing if there is none."""
    return f"\n{text(json.loads(PUBLISHED.read_text()))}\n" if PUBLISHED.exists() else ""


def text(result: dict[str, Any]) -> str:
    sizes, rows, machine = result["sizes"], result["rows"], result["machine"]
    absent = [f"- {_BY_NAME[name].title} was not measured: {why}" for name, why in result["absent"].items()]
    busy = ""
    if result["load"] > QUIET_LOAD:
        busy = (
            f" **The machine was busy** (load {result['load']:g} on {machine['cores']} cores before the run): steps a"
            " second are far below the speed of a quiet machine; CPU time and effects are comparable."
        )
    busy += f" {result['note']}" if result.get("note") else ""
    return _TEXT.format(
        date=result["date"],
        **machine,
        busy=busy,
        **{key: f"{value:g}" for key, value in sizes.items()},
        seed=result["seed"],
        speed=markdown(_SPEED_HEAD, [_speed(result, row) for row in rows]),
        kills=markdown(_KILLS_HEAD, [_kills(row) for row in rows if "kills" in row]),
        absent="\n".join([*absent, "", ""] if absent else []),
        engines=markdown(
            ["", "settings", "what it promises about an interrupted step", "where it is better"],
            _engines(rows),
            right=False,
        ),
        limits=markdown(["", "target", "measured", "reached"], _limits(result)),
    )


_SPEED_HEAD = ["", "steps/s", "CPU ms a step", "of it in its server"]
_KILLS_HEAD = [
    "",
    "kills",
    "unsafe calls in flight",
    "unsafe effects doubled",
    "keyed doubled",
    "effects missing",
    "runs done",
    "runs failed",
    "runs lost",
    "asked you",
    "seconds",
]


def _title(row: dict[str, Any]) -> str:
    return _BY_NAME[row["engine"]].title


def _speed(result: dict[str, Any], row: dict[str, Any]) -> list[str]:
    name = f"{_title(row)} {result['versions'].get(row['engine'], '')}".strip()
    if not row.get("steps"):
        return [name, f"none finished: {row.get('problem', '')}", "–", "–"]
    server = row["server_cpu_ms"]
    cpu = row["cpu_ms"] + (server or 0.0)
    return [name, short(row["rate"]), f"{cpu:.2f}", "–" if server is None else f"{server:.2f}"]


def _kills(row: dict[str, Any]) -> list[str]:
    doubled = f"{row['unsafe_doubled']} of {row['unsafe']}"
    numbers = ["keyed_doubled", "missing", "done", "failed", "lost_runs", "asked", "kill_seconds"]
    bold = f"**{doubled}**" if row["unsafe_doubled"] else doubled
    figures = [f"{row[name]:g}" for name in numbers]
    if not row["ended"]:
        figures = [
            figures[0],
            "–",
            "–",
            "–",
            "–",
            "–",
            row.get("kill_problem") or f"did not end in {row['kill_seconds']:.0f} s",
        ]
    return [_title(row), str(row["kills"]), str(row["underway"]), bold, *figures]


def _engines(rows: list[dict[str, Any]]) -> list[list[str]]:
    engines = [_BY_NAME[row["engine"]] for row in rows]
    return [[each.title, each.settings, each.promise, each.better or "–"] for each in engines]


def _limits(result: dict[str, Any]) -> list[list[str]]:
    return [
        [each["name"], each["wanted"], each["measured"], "yes" if each["reached"] else "**no**"]
        for each in result["limits"]
    ]


_TEXT = """## Workflows

From a run of `make bench ARGS=workflows`, published with `make bench ARGS="workflows --publish"`. {date}, {cpu},
{cores} cores, {system}; toolway {commit} on Python {python}.{busy}

Every engine runs the same five steps: a read, three unsafe calls, and one unsafe call with an idempotency key that
the server honors. They call one MCP server, which counts effects by run and step and outlives all kills. {at_once}
runs are active at once. Toolway calls it through its hub; the other engines use plain sockets, which cost less
than any MCP client.

**Speed**: runs for {seconds} s; calls take no time. CPU time includes the process and its database or server.

{speed}

**Kills**: {runs} runs. The process that executes the steps is killed (`kill -9`) 1 to 3 s after its first call, by a
seed ({seed}), up to {max_kills} times, started again at once, and continued by the engine's own recovery. A call takes
{delay} s before its effect and as long after it. *In flight* are the unsafe calls that the server
was running right before a kill. An effect is doubled if the server ran an unsafe step more than once. *Asked you*
counts the questions about a call with an unknown outcome; we answered them from what the server had really done.

{kills}

{absent}{engines}

**Limits of Toolway's engine** (`python -m bench.workflows.limits`):

{limits}"""
