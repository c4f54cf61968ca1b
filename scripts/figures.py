"""The numbers in README.md and docs/index.md, from the files with the measurements.

    python scripts/generate_docs.py    # puts the newest numbers into both pages

A sentence with numbers is in SENTENCES, with a name for each number. The page must have the same words, or it fails.
tests/test_figures.py finds every number of these pages that is in no sentence.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # for `bench`, which is not installed

from bench import verdicts  # noqa: E402 # a package of the repository, found by the path above
from toolway.config.clients import CLIENTS  # noqa: E402 # after the path
from toolway.parts.search.meta_tools import META_TOOLS  # noqa: E402 # after the path

_AGENT = "docs/explanation/tool-search.md"
README, HOME = ROOT / "README.md", ROOT / "docs" / "index.md"
#: What the sentences name besides "and … other clients".
NAMED_CLIENTS = ("claude-code", "cursor", "vscode")
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")

SENTENCES: dict[Path, tuple[str, ...]] = {
    README: (
        "import the servers from Claude Code, Cursor, VS Code, and {other_clients} other clients",
        "In our crash test, none of {unsafe_steps} unsafe steps ran twice.",
        "DBOS repeated {dbos}, LangGraph {langgraph}, and Temporal {temporal};",
        "One process on one core handles {rate} calls per second and adds {added_ms} ms at the median.",
        "That's {times_envoy} times the calls of Envoy's MCP router and {times_fastmcp} times those of FastMCP's proxy",
        "{tools} tools cost a model {listed_tokens} tokens in every conversation.",
        "At `/mcp/search` it sees {meta_tools} tools that find the rest,",
        "and our scripted agent needed {search_tokens} tokens per task",
        "[injecting {faults} kinds of faults]",
        "[running for {soak_hours} hours under faults]",
    ),
    HOME: (
        "Toolway handled {times_fastmcp} times as many calls per second",
        "result {first_result_s} s after it starts (LiteLLM: {litellm_first_s} s)",
    ),
}


def fill(page: Path, text: str) -> str:
    """Return the text of a page with the newest numbers in its sentences."""
    values = figures()
    for sentence in SENTENCES[page]:
        found = list(pattern(sentence).finditer(text))
        if len(found) != 1:
            raise SystemExit(f"{page.relative_to(ROOT)} must have this sentence once: {sentence}")
        breaks = re.findall(r"\s+", found[0][0])  # the page keeps its line breaks
        words = re.split(r"\s+", sentence.format_map(values))
        filled = "".join(word + space for word, space in zip(words, [*breaks, ""], strict=True))
        text = text[: found[0].start()] + filled + text[found[0].end() :]
    return text


def pattern(sentence: str) -> re.Pattern[str]:
    """Return a pattern for a sentence with any numbers, over several lines too."""
    parts = re.split(r"\{\w+\}", sentence)
    words = (r"\s+".join(re.escape(word) for word in re.split(r"\s+", part)) for part in parts)
    return re.compile(r"[\w.,]*\w".join(words))


def figures() -> dict[str, str]:
    """Return all numbers by name, as they are written."""
    return {
        **_speed(),
        **_crashes(),
        **_search(),
        **_reliability(),
        "other_clients": str(len(CLIENTS) - len(NAMED_CLIENTS)),
    }


def _speed() -> dict[str, str]:
    rows = verdicts.Rows(_json("bench/published.json"))
    own, direct, envoy, fastmcp = (
        rows.find(peer, "http", "echo") for peer in ("toolway", "direct", "envoy", "fastmcp-shared")
    )
    busy, single, alone = own(16), own(1), direct(1)
    starts = [rows.get(peer, "http", "first call", "modern", 1) for peer in ("toolway", "litellm")]
    others = [each(16) for each in (envoy, fastmcp)]
    if not busy or not single or not alone or not all(others) or not all(starts):
        raise SystemExit("bench/published.json lacks a figure of the README")
    times = [busy["rate"] / other["rate"] for other in others if other]
    seconds = [start["seconds"] for start in starts if start]
    return {
        "rate": f"{busy['rate']:,.0f}",
        "added_ms": f"{single['p50'] - alone['p50']:.2f}",
        "times_envoy": f"{times[0]:.1f}",
        "times_fastmcp": f"{times[1]:.0f}",
        "first_result_s": f"{seconds[0]:.1f}",
        "litellm_first_s": f"{seconds[1]:.0f}",
    }


def _crashes() -> dict[str, str]:
    rows = {row["engine"]: row for row in _json("bench/workflows/published.json")["rows"]}
    own = [row for name, row in rows.items() if name.startswith("toolway")]
    if any(row["unsafe_doubled"] for row in own):
        raise SystemExit("bench/workflows/published.json: an unsafe step ran twice, the README says none did")
    return {
        "unsafe_steps": str(rows["toolway-sqlite"]["unsafe"]),
        "dbos": str(rows["dbos-sqlite"]["unsafe_doubled"]),
        "langgraph": str(rows["langgraph"]["unsafe_doubled"]),
        "temporal": str(rows["temporal"]["unsafe_doubled"]),
    }


def _search() -> dict[str, str]:
    """Return what tools cost a model. The page has the agent's runs as `make search-score ARGS=agent` prints them."""
    tools = _json("bench/search/data/tokens-504.json")["tools"]
    run = re.search(r"^\| words \| search by words \|.* \| ([\d,]+) \| [\d,]+ \|$", _text(_AGENT), re.MULTILINE)
    if not run:
        raise SystemExit(f"{_AGENT} lacks a figure of the README")
    return {
        "tools": str(len(tools)),
        "listed_tokens": f"{round(sum(tool['o200k'] for tool in tools), -3):,}",
        "search_tokens": f"{round(int(run[1].replace(',', '')), -1):,}",
        "meta_tools": _NUMBERS[len(META_TOOLS)],
    }


def _reliability() -> dict[str, str]:
    rows = re.search(r"^\d+ of (\d+) executed rows hold", _text("docs/reliability.md"), re.MULTILINE)
    soak = re.search(r"^\| calls \| [\d,]+ in ([\d,]+) s", _text("docs/long-runs.md"), re.MULTILINE)
    if not rows or not soak:
        raise SystemExit("docs/reliability.md or docs/long-runs.md lacks a figure of the README")
    return {"faults": rows[1], "soak_hours": _NUMBERS[round(int(soak[1].replace(",", "")) / 3600)]}


def _json(name: str) -> Any:
    return json.loads(_text(name))


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")
